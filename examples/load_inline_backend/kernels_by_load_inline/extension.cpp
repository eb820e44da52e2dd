// What Python calls: torch's tensors on this side, pointers on that of the kernel.
#include <torch/extension.h>

// In rms_norm.cu; returns what went wrong, or nullptr.
const char* launch_rms_norm(const void* x, const void* weight, void* y, int64_t rows, int64_t n, float eps, int kind,
                            void* stream);

void rms_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& y, double eps, int64_t stream) {
    const int kind = x.scalar_type() == at::kFloat ? 0 : x.scalar_type() == at::kHalf ? 1 : 2;
    const int64_t n = weight.numel();
    const char* problem = launch_rms_norm(x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.numel() / n, n, (float)eps,
                                          kind, reinterpret_cast<void*>(stream));
    TORCH_CHECK(problem == nullptr, "rms_norm by load_inline: the launch failed: ", problem);
}
