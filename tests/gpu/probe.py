"""Times operations of a BERT-large layer on the first GPU with torch, as a reference for the kernels of lambert. Prints the
microseconds of each, and the bandwidth where memory limits it.

    probe.py
"""

import torch

torch.manual_seed(1)
tokens = 32768


def time(name, work, size=0):
    for _ in range(3):
        work()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(20):
        work()
    end.record()
    end.synchronize()
    micros = start.elapsed_time(end) * 1e3 / 20
    print("%-44s %9.1f us %8.2f TB/s" % (name, micros, size / micros / 1e6))
    return micros


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


big = random(1 << 29)
time("copy of 1 GiB", big.clone, 4 << 29)
del big
ones = torch.ones(1, tokens, device="cuda", dtype=torch.bfloat16)
for width in [1024, 3072, 4096]:
    x, sums = random(tokens, width), torch.zeros(1, width, device="cuda")
    time(f"column sums, {width}: sum", lambda: x.sum(0, dtype=torch.float32), x.nbytes)
    time(f"column sums, {width}: product with ones", lambda: torch.mm(ones, x, out_dtype=torch.float32), x.nbytes)
    time(f"column sums, {width}: product, accumulated", lambda: torch.addmm(sums, ones, x, out_dtype=torch.float32), x.nbytes)
x, y = random(tokens, 1024), random(tokens, 1024)
weight = random(1024)
time("add, 1024", lambda: x + y, 3 * x.nbytes)
time("layer norm, 1024", lambda: torch.layer_norm(x, (1024,), weight, weight), 2 * x.nbytes)
out, mean, scale = torch.native_layer_norm(x, (1024,), weight, weight, 1e-12)
backward = torch.ops.aten.native_layer_norm_backward
time("layer norm, backward", lambda: backward(y, x, (1024,), mean, scale, weight, weight, [True] * 3), 3 * x.nbytes)
time("layer norm, backward of the input", lambda: backward(y, x, (1024,), mean, scale, weight, weight, [True, False, False]), 3 * x.nbytes)
wide = random(tokens, 4096)
time("gelu, 4096", lambda: torch.nn.functional.gelu(wide), 2 * wide.nbytes)
time("gelu, backward", lambda: torch.ops.aten.gelu_backward(wide, wide), 3 * wide.nbytes)
for m, n, k in [(tokens, 4096, 1024), (tokens, 1024, 4096), (8192, 8192, 8192)]:
    a, b = random(m, k), random(k, n)
    micros = time(f"product {m} x {n} x {k}", lambda: a @ b)
    print("%44s %9.0f TFLOP/s" % ("", 2e-6 * m * n * k / micros))
