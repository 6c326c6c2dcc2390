// What the ONNX Runtime half of the shim (ort.c) and the Python package share, in the manner of link.h.
//
// A `runtime` is the address of what ort.c keeps for one ONNX Runtime in this process. Functions that can fail return
// the address of an OrtStatus, 0 if all went well, and from Python also ESCAPED or INTERRUPTED of ort.c. Objects of ours
// travel as numbers that Python hands out.

typedef struct {
  // From the shim.
  uintptr_t (*api)(uintptr_t runtime);         // OrtApi
  uintptr_t (*factory)(uintptr_t runtime);     // OrtEpFactory
  uintptr_t (*fail)(uintptr_t runtime, int32_t code, const char* text);
  // An OrtNodeComputeInfo. `shapes` are the dims of its inputs, then of its outputs, each as rank and dims; NULL if they
  // are known at run time only. `stage` is NULL, or an address and a number of bytes for each input, then for each
  // output: memory that stays valid until `release_node`, and that `launch` runs the node on. So do the two Python
  // objects: `launch` is called without arguments and does what the function `launch` does; `failed` is called with the
  // exception if it raises one, and returns a status. 0 if there is no memory.
  uintptr_t (*make_node)(uintptr_t runtime, uint64_t node, int32_t on_stream, uint32_t inputs, uint32_t outputs,
                         const int64_t* shapes, size_t length, const uint64_t* stage, uintptr_t launch,
                         uintptr_t failed);
  // Has ONNX Runtime allocate the outputs of a call whose shapes were not known; their addresses follow the inputs'.
  uintptr_t (*make_outputs)(uintptr_t call, const int64_t* shapes);

  // From Python, which sets `attached` last.
  int32_t attached;
  uintptr_t (*create_factory)(uintptr_t runtime, const char* name, uintptr_t logger);
  void (*release_factory)(uintptr_t runtime);
  uintptr_t (*supported_devices)(uintptr_t runtime, uintptr_t devices, size_t count, uintptr_t out, size_t max,
                                 size_t* number);
  uintptr_t (*create_ep)(uintptr_t runtime, uintptr_t devices, uintptr_t metadata, size_t count, uintptr_t options,
                         uintptr_t logger, uint64_t* ep);
  void (*release_ep)(uint64_t ep);
  uintptr_t (*capability)(uint64_t ep, uintptr_t graph, uintptr_t support);
  uintptr_t (*compile)(uint64_t ep, uintptr_t graphs, uintptr_t nodes, size_t count, uintptr_t infos,
                       uintptr_t context_nodes);
  void (*release_node)(uint64_t node);
  uintptr_t (*dynamic_options)(uint64_t ep, uintptr_t keys, uintptr_t values, size_t count);
  uintptr_t (*compatibility)(uintptr_t runtime, const char* text, int32_t* answer);
  uintptr_t (*compatibility_text)(uint64_t ep); // valid as long as the provider; 0 if there is none
  // One execution. `addresses` are those of the inputs and, where the shapes were known, of the outputs. `dims` are
  // those of the inputs where they were not known, as rank and dims each, `length` numbers; otherwise NULL.
  uintptr_t (*compute)(uint64_t node, uintptr_t call, const char* addresses, uintptr_t stream, const int64_t* dims,
                       size_t length);
  // One execution on the node's stage, by one thread at a time.
  uintptr_t (*launch)(uint64_t node);

  // Device memory. An `allocator` and a `stream` are numbers as well.
  int32_t (*stream_aware)(uintptr_t runtime);
  uintptr_t (*create_allocator)(uintptr_t runtime, uintptr_t memory_info, uint64_t* allocator);
  void (*release_allocator)(uint64_t allocator);
  uintptr_t (*allocate)(uint64_t allocator, size_t size, uintptr_t stream); // address, 0 if there is none left
  void (*deallocate)(uint64_t allocator, uintptr_t address);
  int32_t (*can_copy)(uintptr_t runtime, uintptr_t from, uintptr_t to);
  uintptr_t (*copy)(uintptr_t runtime, uintptr_t sources, uintptr_t targets, uintptr_t streams, size_t count);
  uintptr_t (*create_stream)(uintptr_t runtime, uintptr_t memory_device, uint64_t* stream, uintptr_t* handle);
  uintptr_t (*flush_stream)(uintptr_t runtime, uint64_t stream);
  void (*release_stream)(uint64_t stream);
  uintptr_t (*create_event)(uintptr_t runtime, uint64_t stream, uint64_t* event);
  uintptr_t (*record_event)(uintptr_t runtime, uint64_t event);
  uintptr_t (*wait_event)(uintptr_t runtime, uint64_t event, uintptr_t stream); // of a stream; 0: on the host
  void (*release_event)(uint64_t event);
} fusilli_ort_link;
