"""The closed lists of the field: failure classes, verdict actions, grades of action, trust, phases."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class FailureClass(StrEnum):
    """What kind of thing broke."""

    GPU_HARDWARE = "gpu_hardware"
    GPU_MEMORY_ECC = "gpu_memory_ecc"
    NVLINK_NVSWITCH = "nvlink_nvswitch"
    PCIE = "pcie"
    GPU_DRIVER_OR_FIRMWARE = "gpu_driver_or_firmware"
    NETWORK_FABRIC = "network_fabric"
    HOST_MEMORY_OOM = "host_memory_oom"
    GPU_MEMORY_OOM = "gpu_memory_oom"
    USER_CODE = "user_code"
    NUMERICAL = "numerical"
    STORAGE = "storage"
    DATA_INPUT = "data_input"
    KUBERNETES_INFRA = "kubernetes_infra"
    SCHEDULER_PREEMPTION = "scheduler_preemption"
    IMAGE_OR_CONFIG = "image_or_config"
    NODE_HOST = "node_host"
    SOFTWARE_STACK_MISMATCH = "software_stack_mismatch"
    TIMEOUT_HANG_SYMPTOM_ONLY = "timeout_hang_symptom_only"
    THERMAL_POWER = "thermal_power"
    DEGRADATION = "degradation"
    UNKNOWN = "unknown"


class VerdictAction(StrEnum):
    """What to do about it, as a person would be told."""

    NONE = "none"
    RESTART_PROCESS = "restart_process"
    RESTART_JOB = "restart_job"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    REPLACE_NODE = "replace_node"
    FIX_CONFIG = "fix_config_do_not_restart"
    FIX_USER_CODE = "fix_user_code_do_not_restart"
    WAIT_RETRY = "wait_retry"
    INVESTIGATE_NETWORK = "investigate_network"

    @property
    def stops_the_job(self) -> bool:
        """Whether a restart cannot help until a person has changed something."""
        return self in (VerdictAction.FIX_CONFIG, VerdictAction.FIX_USER_CODE)

    @property
    def touches_hardware(self) -> bool:
        """Whether the device or node itself needs work before it can be trusted again."""
        return self in (VerdictAction.RESET_GPU, VerdictAction.REBOOT_NODE, VerdictAction.REPLACE_NODE)


class Grade(IntEnum):
    """How much an action disturbs, in rising order; budgets, brakes and the evidence needed hang on it."""

    FREE = 0
    """Observe, notify, capture evidence, release: always allowed."""
    REVERSIBLE = 1
    """Taint a node: needs one authentic record about a device that exists on that node."""
    DISTURBING = 2
    """Restart or move a gang: needs that plus a sign from the job, or ranks that already died."""
    DESTRUCTIVE = 3
    """Reset, reboot, power, replace: needs two sources, one of which no tenant can write."""


class Trust(IntEnum):
    """How hard evidence is to forge or mistake, in rising order."""

    TRAINING_LOG = 1
    """Text that the job itself wrote: a hint about the job, never about a node."""
    SCHEDULER_STATUS = 2
    """Kubernetes or Slurm status."""
    NODE_SERVICE = 3
    """A service of the node, and what Reknit itself measured about a process."""
    KERNEL_RECORD = 4
    """A record of the kernel, facility 0."""
    DRIVER_API = 5
    """The driver's own answer (NVML, DCGM)."""


class Phase(StrEnum):
    """Where a second of a job's wall time went. Every second is in exactly one."""

    STARTUP = "startup"
    """From submission to the first step ever."""
    PRODUCTIVE = "productive"
    """Steps that were never made before."""
    DETECT = "detect"
    """From the last sign of progress to the first signal."""
    DIAGNOSE = "diagnose"
    """From the first signal to the diagnosis, evidence capture included."""
    DECIDE = "decide"
    """From the diagnosis to the first action: back-off, budget, capacity."""
    STOP = "stop"
    """Ending what is left of the failed attempt."""
    REQUEUE = "requeue"
    """From the end of the failed attempt to the placement of the next."""
    START = "start"
    """From placement until the training program shows its first sign of life."""
    RELOAD = "reload"
    """From the first sign of life until the checkpoint is loaded or the first step is made."""
    RECOMPUTE = "recompute"
    """Steps made again, up to the furthest step reached before the failure."""
    ENDED = "ended"
    """After the job's end; not part of its wall time."""


LOST_PHASES = (
    Phase.DETECT,
    Phase.DIAGNOSE,
    Phase.DECIDE,
    Phase.STOP,
    Phase.REQUEUE,
    Phase.START,
    Phase.RELOAD,
    Phase.RECOMPUTE,
)
"""The phases that an incident's bill consists of, in the order in which they happen."""
