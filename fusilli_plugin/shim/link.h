// What the shim and the Python package share: one struct. The C compiler reads this file, and so does cffi
// (fusilli_plugin/edge/build.py makes fusilli_plugin/edge/link.py of it), so it holds plain declarations only.
//
// Statuses are hipDNN's. Addresses and sizes of what a call hands over travel as integers; they are valid during the
// call. A caller is described by the serial number of its handle, the HIP device that was current when the handle was
// made (-1: unknown) and the stream that the handle has now.

typedef struct {
  // From the shim. `report` stands first: it takes the reason why attaching failed.
  void (*report)(const char* text);
  uint32_t abi;             // FUSILLI_ABI of the shim
  int32_t owns_interpreter; // 1 if the shim has started the interpreter
  const char* version;      // of the distribution that the shim was built for
  const char* engine_name;
  int64_t engine_id;
  void (*set_error)(const char* text);             // of the calling thread
  void (*log)(int32_t severity, const char* text); // to the host's callback, if its level lets it pass
  void (*detach)(void);                            // no call comes after this one
  // Has `launch`, a Python object, called without arguments when the thread or another one executes with these arguments
  // again, in place of `execute`. `forget` ends that for a context. The shim holds a reference until then.
  void (*remember)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t context, uintptr_t workspace,
                   const char* buffers, uint32_t count, uintptr_t launch);
  void (*forget)(uintptr_t context);
  int32_t log_severity;                            // lowest severity that the host wants to see, 4: none

  // From Python, which sets `attached` last.
  int32_t attached;
  uintptr_t failed; // a Python object: called with the exception of a launch, it returns a status
  void (*set_log_severity)(int32_t severity);
  int32_t (*claims)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t graph, size_t graph_size,
                    int32_t* yes);
  int32_t (*details)(int32_t device, uintptr_t graph, size_t graph_size, uintptr_t* data, size_t* size);
  int32_t (*free_bytes)(uintptr_t data);
  int32_t (*workspace_size)(int32_t device, uintptr_t config, size_t config_size, uintptr_t graph, size_t graph_size,
                            size_t* size);
  int32_t (*create_context)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t config, size_t config_size,
                            uintptr_t graph, size_t graph_size, uintptr_t* context);
  int32_t (*destroy_context)(uintptr_t context);
  int32_t (*context_workspace_size)(uintptr_t context, size_t* size);
  int32_t (*execute)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t context, uintptr_t workspace,
                     const char* buffers, uint32_t count);
  int32_t (*execute_overridden)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t context,
                                uintptr_t workspace, const char* buffers, uint32_t count, uint32_t overrides,
                                const int64_t* uids, const uint32_t* lengths, const int64_t* const* dims,
                                const int64_t* const* strides);
  int32_t (*serialize)(uintptr_t context, uintptr_t* data, size_t* size);
  int32_t (*restore)(uint64_t serial, int32_t device, uintptr_t stream, uintptr_t data, size_t size,
                     uintptr_t* context);
  int32_t (*destroy_handle)(uint64_t serial);
  int32_t (*attach_ort)(uintptr_t table); // fills a fusilli_ort_link
} fusilli_link;
