// Counts and last values of the calls of fake_cuda.cc, which is a library of its own.
#pragma once

#include <cstdint>

struct FakeCuda {
  int calls;
  int retained;
  int pushed;
  bool loaded_ptx;  // true if it was the text that the fake NVRTC returns
  int compiled;
  char architecture[64];
  const char* launched;
  unsigned blocks;
  unsigned threads;
  void* stream;
  unsigned char argument[16];  // the first bytes of the arguments
};

extern "C" FakeCuda* fake_cuda();
