# The CUDA backend is optional twice: it is built where nvcc is (-DGALLEY_CUDA=OFF leaves it out),
# and the program that has it needs neither driver nor card unless it is asked for it.
#
# GALLEY_HAS_CUDA says whether src/kernels/cuda is part of the build; one line says why not.
option(GALLEY_CUDA "Build the CUDA backend where nvcc is found" ON)
set(GALLEY_HAS_CUDA OFF)

if(NOT GALLEY_CUDA)
  message(STATUS "CUDA: switched off by GALLEY_CUDA, building for the CPU only")
elseif(GALLEY_SANITIZE OR GALLEY_FUZZ)
  message(STATUS "CUDA: left out of a build with sanitizers, building for the CPU only")
else()
  find_program(GALLEY_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT GALLEY_NVCC)
    message(STATUS "CUDA: no nvcc, building for the CPU only")
  else()
    set(CMAKE_CUDA_COMPILER ${GALLEY_NVCC})
    # 3.25 does not know the name 90a, so the code is named in the flags below.
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # the static one is linked by name
    # ptxas only mentions that it serialises wgmma.
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/nvcc_unserialized.sh)
    if(CCACHE)
      list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    # Nor does 3.25 know that this compiler speaks C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    set(GALLEY_HAS_CUDA ON)
    message(STATUS "CUDA: ${GALLEY_NVCC} ${CMAKE_CUDA_COMPILER_VERSION}, building for SM90")
  endif()
endif()

# What every .cu file is compiled with. Products and sums are contracted only where the source
# says fma: the specification's rounding points depend on it.
set(GALLEY_CUDA_OPTIONS
  -gencode=arch=compute_90a,code=sm_90a -O3 --fmad=false --expt-relaxed-constexpr
  -Werror=all-warnings --diag-suppress=177,554 -Xcompiler=-Wall,-Wextra,-Werror,-Wno-unused-parameter)
