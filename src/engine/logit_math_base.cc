#define GALLEY_LOGIT_LEVEL logit_base
#include "engine/logit_math_body.inc"
