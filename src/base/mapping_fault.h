// Turns the signal of an unreadable mapped page into one line that names the file.
//
// A mapped file that becomes shorter, or whose disk fails, ends the process with SIGBUS at the
// next touch, wherever that is. Nothing can be saved then, but what happened can be said.
#pragma once

#include <cstddef>
#include <string>

namespace galley {

// More files than this are mapped as well, but a fault in them is reported without a name.
constexpr size_t kWatchedMappingsMax = 1024;

// Called by MappedFile. Any thread.
void watch_mapping(const std::byte* data, size_t size, const std::string& path);
void forget_mapping(const std::byte* data);

// From here on, a fault in a watched mapping writes its line and exits with code 1. A bus error
// anywhere else ends the process as it would have.
void report_mapping_faults();

}  // namespace galley
