// What an Ops does that leaves it to the interface.
#include "kernels/ops.h"

#include "base/check.h"

namespace galley::kernels {

WeightFolds* Ops::folds() { return nullptr; }
ExpertSharing* Ops::sharing() { return nullptr; }
bool Ops::joins_ranks() const { return false; }

void Ops::norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                      std::span<const Product> products) {
  rms_norm(x, weight, eps, x);
  linear(x, products);
}

void Ops::hand_in() {}
bool Ops::overlaps_steps() const { return false; }
bool Ops::is_done() { return true; }
void Ops::fetch(void* host, const void* from, int64_t bytes) { memory().read(host, from, bytes); }

bool Ops::may_await_ids(int64_t /*rows*/) const { return false; }
void Ops::await_ids() { CHECK(false); }  // may_await_ids() says so
void Ops::give_ids() { CHECK(false); }

bool Ops::draws() const { return false; }

void Ops::draw(Rows<const float> /*logits*/, std::span<const DrawRequest> /*requests*/,
               DrawnToken* /*tokens*/) {
  CHECK(false);  // draws() says so
}

}  // namespace galley::kernels
