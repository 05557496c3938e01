// The register lists that wgmma wants spelled out: names %0.. of N accumulators inside the
// instruction, and the N read-write operands d[0].. behind it. Text only; no instruction.
#pragma once

#define GALLEY_NAMES_4 "%0, %1, %2, %3"
#define GALLEY_NAMES_8 GALLEY_NAMES_4 ", %4, %5, %6, %7"
#define GALLEY_NAMES_16 GALLEY_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GALLEY_NAMES_20 GALLEY_NAMES_16 ", %16, %17, %18, %19"
#define GALLEY_NAMES_24 GALLEY_NAMES_20 ", %20, %21, %22, %23"
#define GALLEY_NAMES_28 GALLEY_NAMES_24 ", %24, %25, %26, %27"
#define GALLEY_NAMES_32 GALLEY_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define GALLEY_NAMES_36 GALLEY_NAMES_32 ", %32, %33, %34, %35"
#define GALLEY_NAMES_40 GALLEY_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define GALLEY_NAMES_48 GALLEY_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define GALLEY_NAMES_56 GALLEY_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define GALLEY_NAMES_64 GALLEY_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define GALLEY_NAMES_80                      \
  GALLEY_NAMES_64                            \
  ", %64, %65, %66, %67, %68, %69, %70, %71" \
  ", %72, %73, %74, %75, %76, %77, %78, %79"
#define GALLEY_NAMES_96                      \
  GALLEY_NAMES_80                            \
  ", %80, %81, %82, %83, %84, %85, %86, %87" \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define GALLEY_NAMES_128                             \
  GALLEY_NAMES_96                                    \
  ", %96, %97, %98, %99, %100, %101, %102, %103"     \
  ", %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

// Four operands from d[i] on.
#define GALLEY_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])

#define GALLEY_SUMS_4(d) GALLEY_FOUR(d, 0)
#define GALLEY_SUMS_8(d) GALLEY_SUMS_4(d), GALLEY_FOUR(d, 4)
#define GALLEY_SUMS_16(d) GALLEY_SUMS_8(d), GALLEY_FOUR(d, 8), GALLEY_FOUR(d, 12)
#define GALLEY_SUMS_20(d) GALLEY_SUMS_16(d), GALLEY_FOUR(d, 16)
#define GALLEY_SUMS_24(d) GALLEY_SUMS_20(d), GALLEY_FOUR(d, 20)
#define GALLEY_SUMS_28(d) GALLEY_SUMS_24(d), GALLEY_FOUR(d, 24)
#define GALLEY_SUMS_32(d) GALLEY_SUMS_24(d), GALLEY_FOUR(d, 24), GALLEY_FOUR(d, 28)
#define GALLEY_SUMS_36(d) GALLEY_SUMS_32(d), GALLEY_FOUR(d, 32)
#define GALLEY_SUMS_40(d) GALLEY_SUMS_32(d), GALLEY_FOUR(d, 32), GALLEY_FOUR(d, 36)
#define GALLEY_SUMS_48(d) GALLEY_SUMS_40(d), GALLEY_FOUR(d, 40), GALLEY_FOUR(d, 44)
#define GALLEY_SUMS_56(d) GALLEY_SUMS_48(d), GALLEY_FOUR(d, 48), GALLEY_FOUR(d, 52)
#define GALLEY_SUMS_64(d) GALLEY_SUMS_56(d), GALLEY_FOUR(d, 56), GALLEY_FOUR(d, 60)
#define GALLEY_SUMS_80(d) \
  GALLEY_SUMS_64(d), GALLEY_FOUR(d, 64), GALLEY_FOUR(d, 68), GALLEY_FOUR(d, 72), GALLEY_FOUR(d, 76)
#define GALLEY_SUMS_96(d) \
  GALLEY_SUMS_80(d), GALLEY_FOUR(d, 80), GALLEY_FOUR(d, 84), GALLEY_FOUR(d, 88), GALLEY_FOUR(d, 92)
#define GALLEY_SUMS_112(d)                                                         \
  GALLEY_SUMS_96(d), GALLEY_FOUR(d, 96), GALLEY_FOUR(d, 100), GALLEY_FOUR(d, 104), \
      GALLEY_FOUR(d, 108)
#define GALLEY_SUMS_128(d)                                                           \
  GALLEY_SUMS_112(d), GALLEY_FOUR(d, 112), GALLEY_FOUR(d, 116), GALLEY_FOUR(d, 120), \
      GALLEY_FOUR(d, 124)
