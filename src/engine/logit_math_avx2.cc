#define GALLEY_LOGIT_LEVEL logit_avx2
#include "engine/logit_math_body.inc"
