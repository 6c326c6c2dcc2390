// What a graph computes, in double precision and plain loops: the host's own judge of the plugin's results.

#ifndef HOST_REFERENCE_H
#define HOST_REFERENCE_H

#include "plugin.h"

// Reads `folder/reference`, computes the graph from the inputs of `done` and compares each element of its outputs.
// Prints the largest error in units of what is allowed; ends the process where one is larger. 0 if there is no such file.
//
// Lines of the file: `tensor UID TYPE ALLOWED RANK DIMS... STRIDES...`, `value UID NUMBER`, and for each node `op NAME`,
// `port NAME UID`, `numbers NAME COUNT NUMBERS...`, `word NAME TEXT`, `run`. ALLOWED times (1 + the largest magnitude in
// the tensor) is the error that an element may have.
int reference_check(const case_t* done, const char* folder);

#endif
