// The one binary. Each verb is a file of its own; this one only chooses.
#include <cstdio>

int main() {
  std::fputs("galley: no verbs yet\n", stderr);
  return 64;
}
