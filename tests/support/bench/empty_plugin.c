// The function of an engine plugin that is called most, doing nothing: what a call of any plugin costs.

#include <stdint.h>

__attribute__((visibility("default"))) int hipdnnEnginePluginExecuteOpGraph(void* handle, void* context,
                                                                            void* workspace, const void* buffers,
                                                                            uint32_t count) {
  (void)handle, (void)context, (void)workspace, (void)buffers, (void)count;
  return 0;
}
