# CUDA is found or skipped with one line: the CPU program is complete without it.
find_program(GALLEY_NVCC nvcc PATHS /usr/local/cuda/bin)
if(GALLEY_NVCC)
  message(STATUS "CUDA: ${GALLEY_NVCC} found; this version has no CUDA backend yet, building for the CPU")
else()
  message(STATUS "CUDA: no nvcc, building for the CPU only")
endif()
