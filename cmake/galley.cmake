# One library a folder, sources listed by name, one test program beside it.

add_library(galley_flags INTERFACE)
# g++ contracts a*b+c by default: a loop and its tail would then round differently.
set(GALLEY_CXX_OPTIONS -Wall -Wextra -Werror -Wshadow -Wconversion -Wno-sign-conversion
  -Wnon-virtual-dtor -ffp-contract=off -fno-math-errno)
target_compile_options(galley_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${GALLEY_CXX_OPTIONS}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${GALLEY_CUDA_OPTIONS}>")
target_include_directories(galley_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(galley_flags INTERFACE Threads::Threads)
if(GALLEY_SANITIZE)
  target_compile_options(galley_flags INTERFACE
    -fsanitize=${GALLEY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # g++ 12 sees uninitialised members inside <regex> once the code is instrumented.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(galley_flags INTERFACE -fsanitize=${GALLEY_SANITIZE})
endif()
if(GALLEY_FUZZ)
  target_compile_options(galley_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# galley_library(NAME SOURCES a.cc ... [TESTS a_test.cc ...] [DEPENDS targets ...])
function(galley_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;TESTS;DEPENDS" ${ARGN})
  add_library(galley_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(galley_${name} PUBLIC galley_flags ${ARG_DEPENDS})
  if(ARG_TESTS AND GALLEY_TESTS)
    galley_test(${name} SOURCES ${ARG_TESTS} DEPENDS galley_${name})
  endif()
endfunction()

# galley_test(NAME SOURCES a_test.cc ... DEPENDS targets ... [LABELS l ...])
# One program NAME_test, registered as one ctest entry.
function(galley_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${ARG_DEPENDS} GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE GALLEY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test)
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
endfunction()
