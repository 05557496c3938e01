#define GALLEY_LOGIT_LEVEL logit_avx512
#include "engine/logit_math_body.inc"
