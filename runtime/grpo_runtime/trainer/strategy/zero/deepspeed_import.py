"""DeepSpeed, imported without MLflow: its autotuner, which nobody uses here, imports that for seconds where
it is installed."""

import sys

_UNUSED = "mlflow"
_is_hidden = _UNUSED not in sys.modules
if _is_hidden:
    # which `import mlflow` takes for a module that is not there
    sys.modules[_UNUSED] = None  # type: ignore[assignment]
try:
    import deepspeed
    import deepspeed.runtime.zero.config

    # or the first optimizer imports it, and with it torch's compiler, which takes seconds in every process
    import deepspeed.runtime.zero.muon.muon_optimizer
finally:
    if _is_hidden:
        del sys.modules[_UNUSED]

__all__ = ["deepspeed"]
