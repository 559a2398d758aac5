"""What accelerators can do by their makers' data sheets: dense rates, not the sparse ones; memory as sold.

Source: NVIDIA's data sheets of each product and AMD's of the MI300X.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str
    memory_bytes: float
    bandwidth: float
    """Bytes per second from its own memory."""
    flops16: float
    """Dense 16-bit operations per second."""
    flops8: float
    """Dense 8-bit operations per second; the 16-bit rate where the hardware has none faster for floating point."""
    link: float
    """Bytes per second to a neighbour, one direction."""
    watts: float

    def flops(self, weight_bits: float) -> float:
        """Operations per second with weights and activations of this width; 4-bit weights compute in 16 bits."""
        return self.flops8 if weight_bits == 8 else self.flops16


_GIB, _TERA, _GIGA = 2.0**30, 1e12, 1e9
_PCIE4, _PCIE5 = 32e9, 64e9


def _device(name: str, memory: tuple[float, float], flops: tuple[float, float], link: float, watts: float) -> Device:
    """A row: memory in GiB and TB/s, dense 16- and 8-bit TFLOPS, link in bytes per second."""
    return Device(name, memory[0] * _GIB, memory[1] * _TERA, flops[0] * _TERA, flops[1] * _TERA, link, watts)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("A100-SXM-40GB", (40, 1.555), (312, 312), 300 * _GIGA, 400),
        _device("A100-SXM-80GB", (80, 2.039), (312, 312), 300 * _GIGA, 400),
        _device("A100-PCIe-80GB", (80, 1.935), (312, 312), _PCIE4, 300),
        _device("H100-SXM", (80, 3.35), (989.4, 1978.9), 450 * _GIGA, 700),
        _device("H100-PCIe", (80, 2.0), (756.4, 1512.9), _PCIE5, 350),
        _device("H200-SXM", (141e9 / 2**30, 4.8), (989.4, 1978.9), 450 * _GIGA, 700),
        _device("B200-SXM", (180e9 / 2**30, 8.0), (2250, 4500), 900 * _GIGA, 1000),
        _device("L40S", (48, 0.864), (362, 733), _PCIE4, 350),
        _device("L4", (24, 0.300), (121, 242), _PCIE4, 72),
        _device("A10", (24, 0.600), (125, 125), _PCIE4, 150),
        _device("A10G", (24, 0.600), (70, 70), _PCIE4, 300),
        _device("T4", (16, 0.320), (65, 65), 16 * _GIGA, 70),
        _device("V100-SXM", (32, 0.900), (125, 125), 150 * _GIGA, 300),
        _device("MI300X", (192e9 / 2**30, 5.3), (1307.4, 2614.9), 448 * _GIGA, 750),
    )
}
_SHORT = {"A100": "A100-SXM-80GB", "H100": "H100-SXM", "H200": "H200-SXM", "B200": "B200-SXM", "V100": "V100-SXM"}


def find_device(text: str) -> Device:
    """The device of a name as people write it: `A100`, `a100-80gb`, `NVIDIA H100 80GB HBM3`, `H100-SXM5-80GB`.

    Raises ValueError with the known names.
    """
    wanted = text.upper().replace("_", "-")
    exact = next((device for name, device in DEVICES.items() if name.upper() == wanted), None)
    if exact is not None:
        return exact
    words = set(wanted.replace("-", " ").replace("/", " ").split())
    chips = ("MI300X", "A100", "H100", "H200", "B200", "L40S", "A10G", "A10", "V100", "L4", "T4")
    chip = next((name for name in chips if name in words), None)
    if chip is None:
        raise ValueError(f"unknown device {text!r}; known: {', '.join(DEVICES)}")
    if chip == "A100":
        if "PCIE" in words:
            return DEVICES["A100-PCIe-80GB"]
        return DEVICES["A100-SXM-40GB" if words & {"40GB", "40G"} else "A100-SXM-80GB"]
    if chip == "H100" and "PCIE" in words:
        return DEVICES["H100-PCIe"]
    return DEVICES[_SHORT.get(chip, chip)]


def ridge_batch(device: Device, weight_bits: float = 16) -> float:
    """Where a decode step's matrices turn from memory- to compute-bound: FLOPS · bytes per weight / (2 · bandwidth).

    Reading the KV cache does not amortise over the batch, and the cache usually binds long before.
    """
    return device.flops(weight_bits) * weight_bits / 8 / (2 * device.bandwidth)


def transfer_seconds(payload: float, link: float, latency_s: float = 0.0) -> float:
    """Seconds to move `payload` bytes over `link` bytes per second, such as a prompt's KV cache to where it decodes."""
    return latency_s + payload / link
