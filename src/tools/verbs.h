// The verbs of the one binary: each is a file of its own that reads its command
// line and hands plain values to the rest of the program.
//
// argv[0] is the verb; the result is the process's exit code (exit_code.h).
#pragma once

namespace galley::tools {

int run_run(int argc, char** argv);
int run_batch(int argc, char** argv);
int run_serve(int argc, char** argv);
int run_eval(int argc, char** argv);
int run_tokenize(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_bench_serve(int argc, char** argv);    // `bench serve`
int run_bench_kernels(int argc, char** argv);  // `bench kernels`
int run_bench_reuse(int argc, char** argv);    // `bench reuse`
int run_verify(int argc, char** argv);
int run_doctor(int argc, char** argv);

}  // namespace galley::tools
