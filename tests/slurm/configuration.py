"""What the configuration files of the test cluster say."""

from __future__ import annotations

import getpass
import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
GPUS_PER_NODE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """One cluster's choices, as the texts of its files."""

    folder: Path
    """Where everything goes."""
    ports: Sequence[int]
    """For slurmctld, slurmdbd and the slurmd of each node."""
    accounting: bool
    """Whether there is a database."""
    settings: Mapping[str, str]
    """Lines of slurm.conf to add or to replace."""

    @property
    def munge_socket(self) -> Path:
        """Where munged listens."""
        return self.folder / "munge" / "socket"

    @property
    def host(self) -> str:
        """What Slurm calls this machine."""
        return socket.gethostname().partition(".")[0]

    def texts(self) -> dict[str, str]:
        """Return the text of each file."""
        texts = {"slurm.conf": self._slurm_conf(), "gres.conf": self._gres_conf()}
        return {**texts, "slurmdbd.conf": self._slurmdbd_conf()} if self.accounting else texts

    def _slurm_conf(self) -> str:
        lines = {**self._who_and_where(), **_RULES, **self._accounting(), **self.settings}
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        for name, port in zip(NODES, self.ports[2:], strict=True):
            text += (
                f"NodeName={name} NodeHostname={self.host} NodeAddr=127.0.0.1 Port={port}"
                f" CPUs=4 RealMemory=4000 Gres=gpu:a100:{GPUS_PER_NODE}\n"
            )
        return (
            f"{text}PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=12\n"
            "PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF\n"
        )

    def _who_and_where(self) -> dict[str, str]:
        return {
            "ClusterName": "mini",
            "SlurmctldHost": f"{self.host}(127.0.0.1)",
            "SlurmctldPort": str(self.ports[0]),
            "SlurmUser": getpass.getuser(),
            "SlurmdUser": getpass.getuser(),
            "AuthType": "auth/munge",
            # A requeued job is held for cred_expire + 1: 6 s instead of 121.
            "AuthInfo": f"socket={self.munge_socket},cred_expire=5",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/%n.pid",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/%n.log",
        }

    def _accounting(self) -> dict[str, str]:
        if not self.accounting:
            return {"AccountingStorageType": "accounting_storage/none"}
        return {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(self.ports[1]),
            "AccountingStoragePass": str(self.munge_socket),
            "AccountingStorageTRES": "gres/gpu",
        }

    def _gres_conf(self) -> str:
        # Slurm refuses GPUs that are only counted; any files that exist will do.
        gpus = f"[0-{GPUS_PER_NODE - 1}]"
        lines = [f"NodeName={name} Name=gpu Type=a100 File={self.folder}/gpus/{name}-{gpus}" for name in NODES]
        return "\n".join(["AutoDetect=off", *lines, ""])

    def _slurmdbd_conf(self) -> str:
        lines = {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.munge_socket}",
            "DbdHost": "localhost",
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self.ports[1]),
            "SlurmUser": getpass.getuser(),
            "LogFile": f"{self.folder}/log/slurmdbd.log",
            "PidFile": f"{self.folder}/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
            "StorageUser": "root",
            "StorageLoc": "slurm",
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())


_RULES = {
    # No cgroups are needed, and nodes may claim more than the machine has.
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SlurmdParameters": "config_overrides",
    "PropagateResourceLimits": "NONE",
    "MpiDefault": "none",
    "MailProg": "/bin/true",
    "GresTypes": "gpu",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0",
    # Seconds. With these a dead node is noticed after 15 s.
    "MessageTimeout": "5",
    "SlurmdTimeout": "8",
    "KillWait": "5",
    "MinJobAge": "300",
    "ReturnToService": "2",
    "MaxArraySize": "1001",
}


def free_ports(count: int) -> list[int]:
    """Choose below the range from which the kernel serves outgoing connections, so that none takes a port meanwhile."""
    ports: list[int] = []
    for port in random.Random().sample(range(15000, 32000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("this machine has no free ports")
