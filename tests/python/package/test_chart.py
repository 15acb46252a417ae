"""The Helm chart of packaging/chart, rendered by helm, and run without Kubernetes.

The tests need the command ``helm``, which ``make chart`` builds. ``FARROW_HELM=require`` makes its
absence a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import farrow
from conftest import wait_until
from farrow._nodes._ports import free_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "packaging" / "chart"
PAGE = ROOT / "docs" / "how-to" / "containers.md"
RUN_NODE = "import sys; from farrow._native import node_main; sys.exit(node_main(sys.argv[1:]))"
CLUSTER = {"cluster": {"etcd": "etcds://etcd:2379", "certificates": "nodes"}}
# Tables of a node of 64 GiB or more, and the buffers of its daemon.
DAEMON_MIB_MIN = 464 + 128


@pytest.fixture(scope="module")
def helm() -> str:
    path = shutil.which("helm")
    if path is None:
        text = "no helm on this machine: make chart"
        if os.environ.get("FARROW_HELM") == "require":
            pytest.fail(text)
        pytest.skip(text)
    return path


def run(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=120, check=False
    )


def render(helm: str, **values: Any) -> dict[str, Any]:
    """The only object of the chart, with these values."""
    done = run(helm, "template", "shared", str(CHART), "--values", "-", text=json.dumps(values))
    assert done.returncode == 0, done.stderr
    found = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert [one["kind"] for one in found] == ["DaemonSet"]
    only: dict[str, Any] = found[0]
    return only


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod


def node_of(manifest: dict[str, Any]) -> dict[str, Any]:
    (node,) = pod_of(manifest)["containers"]
    assert node["name"] == "farrowd"
    found: dict[str, Any] = node
    return found


def options_of(node: dict[str, Any]) -> dict[str, str]:
    """Each argument as option and value."""
    return dict(argument.partition("=")[::2] for argument in node["args"])


def mib(text: str) -> int:
    found = re.fullmatch(r"(\d+)Mi?B?", text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("values", [{}, CLUSTER], ids=["alone", "cluster"])
def test_lint(helm: str, values: dict[str, Any]) -> None:
    done = run(helm, "lint", "--strict", str(CHART), "--values", "-", text=json.dumps(values))
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M)
    assert version
    assert chart["version"] == chart["appVersion"] == version[1]


@pytest.mark.parametrize("memory", [16, 4096, 2 << 20])
def test_the_pod_may_use_more_memory_than_the_node_lends(helm: str, memory: int) -> None:
    """Helm reads numbers as floats, and writes large ones as 2.097152e+06."""
    node = node_of(render(helm, memoryMiB=memory))
    assert options_of(node)["--memory"] == f"{memory}MiB"
    resources = node["resources"]
    manifest = render(helm, memoryMiB=memory)
    (shm,) = (one for one in pod_of(manifest)["volumes"] if one["name"] == "memory")
    assert {"name": "memory", "mountPath": "/dev/shm"} in node["volumeMounts"]
    assert shm["emptyDir"]["medium"] == "Memory"
    assert mib(shm["emptyDir"]["sizeLimit"]) >= memory + DAEMON_MIB_MIN
    assert mib(resources["limits"]["memory"]) >= memory + DAEMON_MIB_MIN
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_every_option_exists(helm: str) -> None:
    node = node_of(render(helm, **CLUSTER, allowUsers=[1000, 1000660000]))
    given = re.findall(r"--[a-z-]+", " ".join([*node["command"], *node["args"]]))
    shown = run(sys.executable, "-c", RUN_NODE, "--help").stdout
    known = set(re.findall(r"--[a-z-]+", shown))
    assert {"--memory", "--certs", "--advertise", "--allow-uid"} <= set(given)
    assert set(given) <= known
    assert "--allow-uid=1000660000" in node["args"]


@pytest.mark.parametrize("values", [{}, CLUSTER], ids=["alone", "cluster"])
def test_paths_agree(helm: str, values: dict[str, Any]) -> None:
    manifest = render(helm, **values, hostFolder="/srv/farrow", user=1000660000)
    pod, node = pod_of(manifest), node_of(manifest)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in node["volumeMounts"]}
    assert set(mounts.values()) == set(volumes)
    options = options_of(node)
    folder = str(Path(options["--socket"]).parent)
    assert volumes[mounts[folder]]["hostPath"]["path"] == "/srv/farrow"
    # What the first container gives to the user of the second is the same folder.
    (first,) = pod["initContainers"]
    assert first["command"][-2:] == ["1000660000:1000660000", folder]
    assert [mount["mountPath"] for mount in first["volumeMounts"]] == [folder]
    if "--certs" in options:
        secret = volumes[mounts[options["--certs"]]]["secret"]
        assert secret["secretName"] == "nodes"
        # The daemon reads the key as a member of the group, and refuses one that all can read.
        assert secret["defaultMode"] == 0o440
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    port = options["--metrics"]
    for probe, path in [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ]:
        script = node[probe]["exec"]["command"][-1]
        assert f"/127.0.0.1/{port} " in script
        assert f"GET {path} " in script


@pytest.mark.parametrize("values", [{}, CLUSTER], ids=["alone", "cluster"])
def test_privileges(helm: str, values: dict[str, Any]) -> None:
    """The node sees the processes of its clients, and nothing else of the machine."""
    pod = pod_of(render(helm, **values))
    assert pod["hostPID"] is True
    assert "hostIPC" not in pod
    assert pod.get("hostNetwork", False) == bool(values)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    added = {}
    for one in [*pod["initContainers"], *pod["containers"]]:
        context = one["securityContext"]
        assert "privileged" not in context
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        added[one["name"]] = context["capabilities"].get("add", [])
        if one["name"] == "farrowd":
            assert "runAsUser" not in context
    assert added == {"folder": ["CHOWN"], "farrowd": []}
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert paths == ["/run/farrow"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"memoryMiB": 8}, "memoryMiB"),
        ({"memoryMib": 4096}, "memoryMib"),
        ({"daemonMiB": 1}, "daemonMiB"),
        ({"options": ["objects-max=5"]}, "options"),
        ({"cluster": {"etcd": "etcd:2379"}}, "etcd"),
        ({"cluster": {"etcd": "etcds://etcd:2379"}}, "cluster.certificates"),
        ({"user": 0}, "user"),
    ],
)
def test_bad_values_are_refused(helm: str, values: dict[str, Any], reason: str) -> None:
    done = run(helm, "template", str(CHART), "--values", "-", text=json.dumps(values))
    assert done.returncode != 0
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("address", "listen", "advertise"),
    [
        ("10.0.0.7", "0.0.0.0:7420", "10.0.0.7:7420"),
        ("fd00::7", "[::]:7420", "[fd00::7]:7420"),
    ],
)
def test_name_and_address_of_a_node(helm: str, address: str, listen: str, advertise: str) -> None:
    """Names of machines have dots, which a node's name may not have."""
    node = node_of(render(helm, **CLUSTER))
    bash, flag, script, zero = node["command"]
    env = {"NODE_NAME": "ip-10-0-0-7.eu.example", "NODE_ADDRESS": address, "PATH": "/usr/bin:/bin"}
    printing = script.replace("/usr/bin/farrowd", "printf '%s\\n'").replace("exec ", "")
    done = subprocess.run(
        [bash, flag, printing, zero, "--more"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "--name=ip-10-0-0-7-eu-example",
        f"--listen={listen}",
        f"--advertise={advertise}",
        "--more",
    ]


def test_the_next_container_of_a_pod_adopts_the_objects(helm: str) -> None:
    """A client maps the memory of the last one, which fills the /dev/shm of the pod until then."""
    node = node_of(render(helm))
    assert "--keep" in node["args"]
    assert {"name": "memory", "mountPath": "/dev/shm"} in node["volumeMounts"]


def test_the_secret_has_the_files_of_every_node(tmp_path: Path) -> None:
    """Before, keys of nodes whose names end in `ca` were left out."""
    (command,) = re.findall(r"^\$ (kubectl create secret .*)$", PAGE.read_text(), re.M)
    nodes = ["a", "africa", "ca-1", "north-ca"]
    issued = {f"{name}.{kind}" for name in nodes for kind in ("pem", "key")} | {"ca.pem"}
    (tmp_path / "certs").mkdir()
    for name in [*issued, "ca.key"]:
        (tmp_path / "certs" / name).touch()
    script = f"kubectl() {{ printf '%s\\n' \"$@\"; }}\n{command}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    given = {line for line in done.stdout.splitlines() if line.startswith("--from-file=")}
    assert given == {f"--from-file=certs/{name}" for name in issued}


@pytest.fixture
def served(helm: str, tmp_path: Path) -> Iterator[tuple[dict[str, Any], subprocess.Popen[bytes]]]:
    """The container of the chart, with the node of this package in place of the image's."""
    port = int(free_addresses(1)[0].rpartition(":")[2])
    node = node_of(render(helm, memoryMiB=64, metricsPort=port))
    # Its memory ends with it here.
    own = [one for one in node["args"] if one != "--keep"]
    given = [one.replace("/run/farrow", str(tmp_path)) for one in own]
    process = subprocess.Popen(
        [sys.executable, "-c", RUN_NODE, "--unsupervised", *given],
        stdin=subprocess.DEVNULL,
        stderr=(tmp_path / "log").open("wb"),
    )
    yield node, process
    process.terminate()
    process.wait(30)


def test_probes(served: tuple[dict[str, Any], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    node, process = served
    probes = {name: node[name]["exec"]["command"] for name in node if name.endswith("Probe")}

    def codes() -> dict[str, int]:
        return {name: run(*command).returncode for name, command in probes.items()}

    wait_until(lambda: set(codes().values()) == {0}, "probes that succeed")
    assert farrow.connect(str(tmp_path / "node.sock")).stats()["memory"]
    process.terminate()
    process.wait(30)
    assert 0 not in codes().values()


def test_the_client_pod_of_the_documentation_fits_the_chart(helm: str) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    client = yaml.safe_load(text)["spec"]
    pod = pod_of(render(helm))
    (container,) = client["containers"]
    socket = options_of(node_of(render(helm)))["--socket"]
    assert {"name": "FARROW_SOCKET", "value": socket} in container["env"]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] == str(Path(socket).parent)
    (volume,) = client["volumes"]
    assert volume["hostPath"]["path"] == pod["volumes"][0]["hostPath"]["path"]
    user = client["securityContext"]["runAsUser"]
    assert user == pod["securityContext"]["runAsUser"]
