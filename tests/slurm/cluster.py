"""A real Slurm cluster of four nodes on this machine, for tests and for a look by hand.

Every daemon is Slurm's own (munged, MariaDB, slurmdbd, slurmctld and four slurmd); only the size is a claim: each node
says that it has 4 CPUs, 4000 MB and four A100s, which are empty files. Everything lies in one folder and listens on
free ports or on sockets in that folder, so clusters live beside one another, and beside a Slurm that the machine has.

All of it carries a mark in its environment: the daemons are started with it, and jobs have it because `sbatch` and
`srun` hand their environment on. A process of its own (reaper.py) waits for the end of whoever started the cluster,
however that comes about, then ends everything that carries the mark and removes the folder.

Tried as root and as an ordinary user without a home (who is then SlurmUser and SlurmdUser, and can run jobs as nobody
else); only `hide_folder_from` needs root. By hand: `python tests/slurm/cluster.py FOLDER`, then Ctrl-C.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from slurm import reaper
from slurm.configuration import GPUS_PER_NODE, NODES, Configuration, free_ports

from hpc_resume.cluster.processes import tie_to_parent

MARK = "MINI_SLURM_MARK"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "sbatch")
LIMIT_S = 60.0
"""Nothing here takes this long unless it is broken."""
_SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_NOT_INHERITED = ("SLURM", "SRUN_", "SBATCH_", "SALLOC_", "SQUEUE_", "SACCT_", "SUBMITIT_", "HPC_RESUME_")
_UNUSABLE = {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "UNKNOWN"}


NO_SLURM = "no Slurm here"
"""How the reason of a skipped test begins when the packages are missing."""
HOW_TO_GET_IT = (
    "`make test HPC_RESUME_TEST_APT=1` as root on Debian or Ubuntu, or run tests/slurm/install-packages there"
)


def missing_programs() -> list[str]:
    """Return what must be installed before a cluster can be started here."""
    return [name for name in PROGRAMS if shutil.which(name, path=_SEARCH_PATH) is None]


def processes_of(mark: str) -> set[int]:
    """Return the daemons and the jobs of the cluster with this mark, and the commands started for it."""
    return reaper.marked(f"{MARK}={mark}")


class MiniSlurm:
    """A cluster: nodes n1 to n4, partitions `main` (the default) and `urgent` (which preempts jobs of `main`)."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        accounting: bool = True,
        settings: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Choose everything, start nothing.

        Args:
            folder: Where everything goes; must be new or empty, and is removed at the end. None for a temporary one.
            accounting: Whether `sacct` works; without it no database is started.
            settings: Lines of slurm.conf to add or to replace.
            files: Names and texts of more files beside slurm.conf, such as job_submit.lua.
        """
        # Sockets lie in here, and a socket's path must be short.
        self.folder = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="mini-slurm-"))
        self.mark = uuid.uuid4().hex
        ports = free_ports(2 + len(NODES))
        self._wanted = Configuration(
            folder=self.folder, ports=ports, accounting=accounting, settings=dict(settings or {})
        )
        self._files = dict(files or {})
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._reaper: subprocess.Popen[bytes] | None = None
        self._hidden: set[str] = set()

    # Starting and stopping

    def start(self) -> None:
        """Start all daemons; return when all nodes are idle."""
        self.folder.mkdir(parents=True, exist_ok=True)
        assert not any(self.folder.iterdir()), f"{self.folder} is not empty, and would be removed at the end"
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", reaper.__file__, f"{MARK}={self.mark}", str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._write_files()
            self._start_daemons()
        except BaseException:
            self._let_reap()
            raise

    def stop(self) -> None:
        """End all jobs and daemons, remove the folder; fail if a process of a job had escaped from Slurm."""
        if self._reaper is None:
            return
        left: list[str] = []
        try:
            # A dead node would hold up the rest: the controller asks it whether its jobs have ended.
            self.settle()
            self._end_daemons()
            left = self._left_after(limit_s=2.0)
        finally:
            self._let_reap()
        assert not left, f"these still ran when the cluster stopped: {left}"
        assert not self.folder.exists(), f"{self.folder} could not be removed"

    def settle(self) -> None:
        """Make it as good as new for the next test: no jobs, four idle nodes."""
        self._wake_controller()
        for name in self._hidden:
            self.kill_node(name)
        self._hidden.clear()
        for name in NODES:
            if not self._is_up(name):
                self.revive_node(name)
        self._cancel_all()
        for name, states in self.node_states().items():
            if states & _UNUSABLE:
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.wait_for(self._all_idle, "all nodes are idle")

    # Using it

    def environment(self) -> dict[str, str]:
        """Return the environment of a user of this cluster, without a trace of any other cluster or job."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        return {**kept, "PATH": _SEARCH_PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), MARK: self.mark}

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command as a user of this cluster, in its folder; return what it prints."""
        done = subprocess.run(
            command,
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command} left with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Return what the controller knows of each job, also of those that ended in the last five minutes."""
        return _records(self.run("scontrol", "-o", "show", "job"))

    def nodes(self) -> list[dict[str, str]]:
        """Return what the controller knows of each node."""
        return _records(self.run("scontrol", "-o", "show", "node"))

    def node_states(self) -> dict[str, set[str]]:
        """Return the state of each node: IDLE, ALLOCATED and so on, and what goes with it, such as DRAIN."""
        return {node["NodeName"]: set(node["State"].split("+")) for node in self.nodes()}

    def wait_for(self, condition: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> None:
        """Poll until it holds; fail with `what` and the end of the logs after the limit."""
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"after {limit_s:.0f} s still not: {what}\n{self._end_of_logs()}"
            time.sleep(0.05)

    # Breaking it

    def kill_node(self, name: str) -> None:
        """Let a node lose its power: its daemon and all that runs on it die at once, and nobody is told."""
        self.kill_slurmd(name)
        while there := processes_of(self.mark) & reaper.marked(f"SLURMD_NODENAME={name}"):
            reaper.kill(there)

    def kill_slurmd(self, name: str) -> None:
        """Let only the daemon of a node die: what Slurm takes for a dead node, while its jobs run on."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def revive_node(self, name: str) -> None:
        """Start a killed node again; return when it can be used."""
        self._start_node(name, _program("slurmd"), "-D", "-N", name)

    def hide_folder_from(self, name: str, path: Path) -> None:
        """Restart a node so that its jobs see an empty folder at `path`; `settle` takes it back. Needs root."""
        self.kill_node(name)
        self._hidden.add(name)
        mount = 'mount -t tmpfs none "$0" && exec "$@"'
        self._start_node(name, "unshare", "--mount", "sh", "-c", mount, str(path), _program("slurmd"), "-D", "-N", name)

    @contextmanager
    def stalled_controller(self) -> Iterator[None]:
        """Have a controller that answers nobody, and reads what it was sent as soon as it wakes up."""
        self._daemons["slurmctld"].send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._wake_controller()

    # How it is done

    def _write_files(self) -> None:
        for part in ("munge", "state", "spool", "gpus", "log", "tmp"):
            (self.folder / part).mkdir()
        # Munge insists on a socket that everybody can reach, and on a key that nobody else can read.
        self.folder.chmod(0o755)
        _write_private(self.folder / "munge" / "key", random.randbytes(128))
        for name in NODES:
            for index in range(GPUS_PER_NODE):
                (self.folder / "gpus" / f"{name}-{index}").touch()
        for name, text in {**self._wanted.texts(), **self._files}.items():
            _write_private(self.folder / name, text.encode())
            if name != "slurmdbd.conf":
                (self.folder / name).chmod(0o644)

    def _start_daemons(self) -> None:
        munge = self.folder / "munge"
        files = [f"--{what}-file={munge / what}" for what in ("key", "log", "pid", "seed")]
        self._start_daemon("munged", "munged", "--foreground", f"--socket={self._wanted.munge_socket}", *files)
        if self._wanted.accounting:
            self._start_database()
            self._start_daemon("slurmdbd", "slurmdbd", "-D")
            self.wait_for(lambda: _listens(self._wanted.ports[1]), "slurmdbd listens")
        self._start_daemon("slurmctld", "slurmctld", "-D")
        self.wait_for(lambda: _listens(self._wanted.ports[0]), "slurmctld listens")
        for name in NODES:
            self._start_daemon(name, "slurmd", "-D", "-N", name)
        self.wait_for(self._all_idle, "all nodes are idle")

    def _start_database(self) -> None:
        data = self.folder / "mariadb"
        # Nothing here has to survive a loss of power.
        options = [f"--datadir={data}", "--debug-no-sync", "--innodb-doublewrite=0", "--innodb-log-file-size=4M"]
        # It begins by removing all temporary tables that it finds, also those of another one that is just starting.
        options.append(f"--tmpdir={self.folder}/tmp")
        if os.geteuid() == 0:
            options.append("--user=root")
        install = ["mariadb-install-db", "--no-defaults", *options, "--skip-test-db"]
        self.run(*install, "--auth-root-authentication-method=normal")
        first = self.folder / "first.sql"
        first.write_text("CREATE DATABASE slurm;\n", encoding="utf-8")
        options += ["--skip-networking", f"--socket={data}/socket", f"--pid-file={data}/pid", f"--init-file={first}"]
        self._start_daemon("mariadbd", "mariadbd", "--no-defaults", *options, "--innodb-buffer-pool-size=16M")
        self.wait_for((data / "socket").exists, "MariaDB listens")

    def _start_node(self, name: str, program: str, *arguments: str) -> None:
        # Until it has registered, the controller speaks of the daemon that was there before; it counts whole seconds.
        before = self._node(name)["SlurmdStartTime"]
        self.wait_for(lambda: time.strftime("%Y-%m-%dT%H:%M:%S") != before, "a second passes")
        self._start_daemon(name, program, *arguments)

        def is_usable() -> bool:
            node = self._node(name)
            return node["SlurmdStartTime"] != before and not _UNUSABLE & set(node["State"].split("+"))

        self.wait_for(is_usable, f"node {name} is usable again")

    def _start_daemon(self, name: str, program: str, *arguments: str) -> None:
        parent = os.getpid()
        environment = {**self.environment(), "MYSQL_UNIX_PORT": f"{self.folder}/mariadb/socket"}
        if name in NODES:
            environment["SLURMD_NODENAME"] = name
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                [_program(program), *arguments],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: tie_to_parent(parent, signal.SIGKILL),  # noqa: PLW1509
            )

    def _is_up(self, name: str) -> bool:
        return name in self._daemons and self._daemons[name].poll() is None

    def _node(self, name: str) -> dict[str, str]:
        return next(node for node in self.nodes() if node["NodeName"] == name)

    def _all_idle(self) -> bool:
        return all(states == {"IDLE"} for states in self.node_states().values())

    def _wake_controller(self) -> None:
        self._daemons["slurmctld"].send_signal(signal.SIGCONT)

    def _cancel_all(self) -> None:
        def nothing_left() -> bool:
            left = self.run("squeue", "--all", "--noheader", "--format=%A").split()
            if left:
                # What ignores SIGTERM would take KillWait longer; nobody wants to hear its last words.
                self.run("scancel", "--full", "--signal=KILL", *left, check=False)
                self.run("scancel", *left, check=False)
            return not left

        self.wait_for(nothing_left, "no job is left")

    def _end_daemons(self) -> None:
        for name in (*NODES, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            if self._is_up(name):
                self._daemons[name].terminate()
                try:
                    self._daemons[name].wait(timeout=10.0)
                except subprocess.TimeoutExpired:
                    self._daemons[name].kill()

    def _left_after(self, limit_s: float) -> list[str]:
        deadline = time.monotonic() + limit_s
        while (left := processes_of(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        # Where a node's daemon was killed, Slurm's own guard of a step may try for a while to report that step's end.
        return [line for line in map(command_line, left) if not line.startswith("slurmstepd: ")]

    def _let_reap(self) -> None:
        assert self._reaper is not None
        self._reaper.communicate()
        self._reaper = None
        for daemon in self._daemons.values():
            daemon.wait()
        self._daemons.clear()

    def _end_of_logs(self) -> str:
        dead = [f"{name}.out" for name in self._daemons if not self._is_up(name)]
        paths = [self.folder / "log" / name for name in ("slurmctld.log", *dead)]
        texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths if path.exists()}
        return "\n".join(f"--- {path.name}\n{text[-1000:]}" for path, text in texts.items())


def _program(name: str) -> str:
    found = shutil.which(name, path=_SEARCH_PATH)
    assert found is not None, f"{name} is not installed"
    return found


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _records(text: str) -> list[dict[str, str]]:
    """Read what `scontrol -o` prints: a line per record, `Name=value` with spaces in some values."""
    lines = [line.strip() for line in text.splitlines() if "=" in line]
    fields = [re.split(r"\s+(?=[A-Z][A-Za-z/:]*=)", line) for line in lines]
    return [dict(field.split("=", 1) for field in record) for record in fields]


def command_line(pid: int) -> str:
    """Return how a process was started; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def main(folder: Path) -> None:
    """Run a cluster until SIGINT or SIGTERM."""
    if missing := missing_programs():
        sys.exit(f"can't start a cluster without {', '.join(missing)}: {HOW_TO_GET_IT}")
    # What is started in the background by a shell without job control inherits that SIGINT is ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    cluster = MiniSlurm(folder)
    try:
        cluster.start()
        sys.stdout.writelines(f"export {name}={cluster.environment()[name]}\n" for name in ("SLURM_CONF", MARK))
        sys.stdout.write(f"# whatever is started from a shell with {MARK} ends with the cluster\n")
        sys.stdout.flush()
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/slurm/cluster.py FOLDER")
    main(Path(sys.argv[1]))
