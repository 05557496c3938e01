// What one step must read and compute, by the config alone: the floor that `galley bench` holds a
// measured step against.
//
// Bytes are counted once (weights of the layers that ran and the experts touched, cache records of
// each sequence), operations are the useful ones, a multiply and an add apart, by the unit that
// does them. Activations and Engram rows are not counted.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/config.h"

namespace galley::tools {

struct WorkRows {
  int64_t rows = 0;
  int64_t sequences = 1;
  int64_t logit_rows = 1;
  int64_t first_position = 0;  // of every sequence's rows
  double experts_touched = 0;  // distinct ones, all layers together
  // Rows of all sequences that run the decoder half under replay reading (b); -1: all of them.
  int64_t tail_rows = -1;
};

// One part of a step, over all layers.
struct PartWork {
  std::string_view name;
  double bytes = 0;
  double fp8_operations = 0;   // of quantised operands
  double bf16_operations = 0;  // of others, f32 included
};

struct Work {
  std::vector<PartWork> parts;

  double bytes() const;
  double fp8_operations() const;
  double bf16_operations() const;
  double operations() const { return fp8_operations() + bf16_operations(); }
};

struct Peaks {
  double bytes_per_s = 0;
  double fp8_operations_per_s = 0;
  double bf16_operations_per_s = 0;
};

// Seconds: of the bytes alone, of the operations alone (each at its unit's peak, one after the
// other), and the floor, the larger of the two.
struct Floor {
  double bytes_s = 0;
  double operations_s = 0;
  double s() const { return bytes_s > operations_s ? bytes_s : operations_s; }
};
Floor floor_of(const Work& work, const Peaks& peaks);

class StepWork {
 public:
  explicit StepWork(const model::Config& config);

  Work of(const WorkRows& rows) const;
  // Distinct experts of `rows` rows in one layer of `experts` that each row draws evenly from.
  static double distinct_experts(const model::Config& config, double rows);

  double expert_bytes() const { return expert_.bytes; }  // of one

 private:
  // Products that a row meets.
  struct Products {
    double bytes = 0;
    double fp8_values = 0;
    double bf16_values = 0;
  };
  struct Layer {
    Products keys;    // window and global KV: layer 20 makes them for all rows
    Products attend;  // the rest of attention, and the indexer's queries
    Products always;  // shared expert, router, hyper-connections, Engram
  };

  const model::Config config_;
  std::vector<Layer> layers_;
  Products expert_;
  Products head_;
};

}  // namespace galley::tools
