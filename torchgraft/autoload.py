"""Registering an installed backend while torch is imported. A package gets it by naming it in its metadata:

    [project.entry-points."torch.backends"]
    foo = "torchgraft.autoload:autoload"        # this line as it is: torch calls the function
    [project.entry-points."torchgraft.drivers"]
    foo = "torch_foo.driver:FooDriver"          # see torchgraft.registration.installed

Afterwards `import torch` is all that a program needs for `torch.device("foo")`.

* Nothing is opened: that happens when the device is first used.
* No exception leaves, since it would make torch itself unusable; it is kept, and raised when the device is first used.
  That holds where torchgraft's own core does not load, too.
* Beside an accelerator that torch was built for and that is there, nothing is registered: torch has room for one, and
  yours should not change because a package was installed. Importing the backend's package (which calls `choose`) or
  TORCHGRAFT_BACKEND=foo asks for it. TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches all of this off.
* One backend fits into a process. Of several installed ones it is the one that TORCHGRAFT_BACKEND names, else the one
  whose package the program has begun to import, else the first by name.
"""

from __future__ import annotations

import difflib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

import torchgraft
from torchgraft import _core
from torchgraft.registration.installed import backend_names, driver_entries, installed_drivers
from torchgraft.registration.naming import check_name

__all__ = ["attempt", "autoload", "choose", "errors", "outcome", "preferred", "present"]

#: Why a backend could not be registered, by its name.
errors: dict[str, Exception] = {}

_this_thread = threading.local()


def autoload() -> None:
    """Registers the installed backend, if nothing speaks against it: what `import torch` is to call."""
    try:
        if present() is not None:
            return  # torch calls this once for each installed backend
        name = preferred()
        if name and (meant := _misspelt(name)):
            warnings.warn(
                f"TORCHGRAFT_BACKEND is {name!r}, for which no installed package has a driver: is {meant!r} meant? No "
                "backend is registered",
                stacklevel=2,
            )
            return
        if name and (os.environ.get("TORCHGRAFT_BACKEND") or not _has_other_accelerator()):
            attempt(name, lambda: _register(name))
    except Exception as error:
        warnings.warn(f"torchgraft could not look for installed backends: {error}", stacklevel=2)


def choose(name: str, *references: str) -> None:
    """Registers a backend because its package is imported: that asks for it, so another accelerator is no obstacle.

    A package calls this at the end of its `__init__.py`. It does nothing if the backend is registered already.

    Args:
        references: the package's drivers, written as in its metadata ("torch_foo.driver:FooDriver"), so that they are
            found where the package was not installed.

    Raises:
        RegistrationError: another backend has this process, so that no use of this one's name could tell why.
    """
    if name in getattr(_this_thread, "attempting", ()):
        return  # its driver is just being imported, by its registration
    # A kept error stays, unless it was that nothing is installed under this name: the package brings its drivers along.
    again = name in errors and not driver_entries(name)
    if again or (name not in errors and name != present()):
        attempt(name, lambda: _register(name, *references))
        if name in errors and not _can_explain(name):
            raise errors[name]


def attempt(name: str, register: Callable[[], object]) -> None:
    """Calls `register`, which registers the backend; an error is kept and raised when the backend is first used.

    For a package with a function of its own in the group "torch.backends", because it has more to say to
    `torchgraft.register` than an entry point can.
    """
    outer = getattr(_this_thread, "attempting", ())
    _this_thread.attempting = (*outer, name)
    try:
        register()
    except Exception as error:
        errors[name] = error
        _explain_at_first_use(name, error)
    else:
        errors.pop(name, None)
    finally:
        _this_thread.attempting = outer


def outcome(name: str) -> ModuleType:
    """The module `torch.<name>` of a registered backend; raises what kept the backend from being registered."""
    if name in errors:
        raise errors[name]
    if name != present():
        raise RuntimeError(f"the backend '{name}' has not been registered")
    return sys.modules[f"torch.{name}"]


def _register(name: str, *references: str) -> None:
    try:
        torchgraft.bind_names()
        from torchgraft.registration.register import register
    except ImportError as error:
        _core.explain_missing(torchgraft._core_error or error)
    register(name, installed_drivers(name, *references))


def present() -> str | None:
    """The backend that is registered in this process, or the one that could not be; None if neither."""
    registration = sys.modules.get("torchgraft.registration.register")
    registered: str | None = registration.registered_name() if registration is not None else None
    return registered or next(iter(errors), None)


def preferred() -> str | None:
    """The backend to register where the program has not said which; None if none is installed."""
    if asked := os.environ.get("TORCHGRAFT_BACKEND"):
        return asked
    names = backend_names()
    for name in names:
        if any(entry.module.partition(".")[0] in sys.modules for entry in driver_entries(name)):
            return name
    return names[0] if names else None


def _misspelt(name: str) -> str | None:
    """The installed backend whose name is nearly this one, which is none's."""
    installed = backend_names()
    near = [] if name in installed else difflib.get_close_matches(name, installed, n=1)
    return near[0] if near else None


def _has_other_accelerator() -> bool:
    """Whether torch has an accelerator of its own to use. It is counted, which opens nothing of ours."""
    import torch

    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return False  # an extension like this one, which then is the obstacle that registering tells of
    try:
        return torch.accelerator.device_count() > 0
    except Exception:  # it is there, and what ails it is for torch to tell at its use
        return True


def _can_explain(name: str) -> bool:
    """Whether using the device `name` leads to us, or can be made to."""
    torch = sys.modules.get("torch")
    return torch is None or torch._C._get_privateuse1_backend_name() == name


def _explain_at_first_use(name: str, error: Exception) -> None:
    """There is no device, but its name should lead to the reason, not to "no such device"."""
    try:
        import torch
        from torch.utils.backend_registration import rename_privateuse1_backend

        check_name(name)
    except (ImportError, ValueError):
        return  # there is nobody to tell, or no such name to use
    if torch._C._get_privateuse1_backend_name() not in ("privateuseone", name) or hasattr(torch, name):
        return  # another backend has the place, or this one has come far enough to speak for itself

    def refuse() -> NoReturn:
        raise RuntimeError(f"The device '{name}' cannot be used: {error}") from error

    module = ModuleType(f"torch.{name}", f"Not usable: {error}")
    module.__dict__.update(
        _torchgraft_placeholder=True,
        is_available=lambda: False,
        device_count=lambda: 0,
        _lazy_init=refuse,
        init=refuse,
        _is_in_bad_fork=lambda: True,
    )
    rename_privateuse1_backend(name)
    torch._register_device_module(name, module)
