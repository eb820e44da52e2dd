"""`kernelmux/registry/backend/package_versions.py`, under the name that the documentation gave it."""

from kernelmux.registry.backend.package_versions import (
    PACKAGES,
    TESTED,
    NotInstalled,
    missing_packages,
    not_installed,
    untested,
    version,
)

__all__ = ["PACKAGES", "TESTED", "NotInstalled", "missing_packages", "not_installed", "untested", "version"]
