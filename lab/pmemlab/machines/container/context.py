"""Docker's contexts: names of engines, as stored by `docker context`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from docker.tls import TLSConfig

from pmemlab.errors import LabError

__all__ = ["Context", "context_in_use"]

_DEFAULT = "default"


@dataclass(frozen=True)
class Context:
    """A named engine. tls: None if its engine uses no TLS.

    environment: variables that make programs without support for contexts use this engine.
    """

    name: str
    host: str
    tls: TLSConfig | None
    environment: Mapping[str, str]


def context_in_use() -> Context | None:
    """Returns the context of DOCKER_CONTEXT, else the current one; None for the default.

    Raises `LabError` if the context does not exist or can't be used.
    """
    # The SDK finds contexts only beside a config.json, which `docker context create` doesn't write.
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    name = os.environ.get("DOCKER_CONTEXT") or _current(folder)
    if name == _DEFAULT:
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    file = folder / "contexts/meta" / digest / "meta.json"
    try:
        endpoint = json.loads(file.read_text(encoding="utf-8"))["Endpoints"]["docker"]
        host = endpoint["Host"]
        verify = not endpoint.get("SkipTLSVerify", False)
    except FileNotFoundError:
        raise LabError(
            f"Docker has no context {name}; `docker context ls` lists those that there are"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"Docker's context {name}: {file} can't be read: {error!r}") from error
    if not host or host.startswith("ssh://"):
        raise LabError(
            f"Docker's context {name}: an engine at {host or 'no address'} can't be used; "
            "set DOCKER_HOST or `docker context use` another"
        )
    certificates = folder / "contexts/tls" / digest / "docker"
    environment = {"DOCKER_HOST": host}
    if certificates.is_dir():
        environment["DOCKER_CERT_PATH"] = str(certificates)
        environment["DOCKER_TLS_VERIFY"] = "1" if verify else ""
    return Context(name, host, _tls(certificates, verify), environment)


def _current(folder: Path) -> str:
    file = folder / "config.json"
    try:
        name = json.loads(file.read_text(encoding="utf-8")).get("currentContext")
    except FileNotFoundError:
        return _DEFAULT
    except (OSError, ValueError, AttributeError) as error:
        raise LabError(f"Docker's settings, {file}, can't be read: {error}") from error
    return name or _DEFAULT


def _tls(folder: Path, verify: bool) -> TLSConfig | None:
    ca, certificate, key = (folder / f"{name}.pem" for name in ("ca", "cert", "key"))
    if not folder.is_dir():
        return None
    return TLSConfig(
        client_cert=(str(certificate), str(key)) if certificate.exists() else None,
        ca_cert=str(ca) if ca.exists() else None,
        verify=verify,
    )
