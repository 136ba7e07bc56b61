"""Makes a device known to PyTorch: every step in the right order, each checked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from os import fspath
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils import backend_registration

from torchgraft import backend, distributed, inductor
from torchgraft._core import _C
from torchgraft.device_module import graphs, make_device_module, multiprocessing
from torchgraft.driver import Driver, SharedLibrary
from torchgraft.fallback import warn_user
from torchgraft.patches import dynamo, libraries, upstream
from torchgraft.registration.environment import warn_of_mistakes
from torchgraft.registration.installed import DRIVERS, backend_names, installed_drivers
from torchgraft.registration.naming import check_name
from torchgraft.registration.shutdown import wait_at_exit

__all__ = ["RegistrationError", "SharedLibrary", "check_attributes", "register", "registered_name"]

UNNAMED = "privateuseone"

T = TypeVar("T")

_lock = threading.RLock()
_begun: str | None = None  # from the first step that cannot be undone
_registered: str | None = None


class RegistrationError(RuntimeError):
    """A step of the registration could not be done; the message says which, and what to do."""


@dataclass(frozen=True)
class _Methods:
    """Methods that torch generates by one option of `generate_methods_for_privateuse1_backend`.

    Attributes:
        of: whose they are, for messages.
        option: the option's name.
        owners: the classes that get them.
        attributes: their names, with `{}` for the backend's.
    """

    of: str
    option: str
    owners: tuple[type, ...]
    attributes: tuple[str, ...] = ("{}", "is_{}")

    def places(self, name: str) -> list[tuple[type, str]]:
        return [(owner, attribute.format(name)) for owner in self.owners for attribute in self.attributes]

    def are_there(self, name: str) -> bool:
        return all(hasattr(owner, attribute) for owner, attribute in self.places(name))


# In the order in which torch generates them: some need those of tensors.
_METHODS = (
    _Methods("tensors", "for_tensor", (torch.Tensor,)),
    _Methods("modules", "for_module", (torch.nn.Module,), ("{}",)),
    _Methods("storages", "for_storage", (torch.UntypedStorage, torch.TypedStorage)),
    _Methods("packed sequences", "for_packed_sequence", (torch.nn.utils.rnn.PackedSequence,)),
)


def register(
    name: str,
    drivers: Sequence[Driver | SharedLibrary] | None = None,
    *,
    unsupported_dtype: Iterable[torch.dtype] | None = None,
) -> ModuleType:
    """Registers a backend: afterwards `torch.device(name)` and the module `torch.<name>` work.

    No device is opened here: that happens at the first use. A call of `torch.utils.rename_privateuse1_backend` or of
    `generate_methods_for_privateuse1_backend` that came before, for the same name, is kept; the device module is made
    here.

    Args:
        name: of lower-case letters and underscores. A process can have one backend made this way.
        drivers: instances of `torchgraft.Driver` or shared libraries. Their devices are numbered one after the other.
            By default those that installed packages offer (`torchgraft.installed_drivers(name)`, which can also be
            part of a list).
        unsupported_dtype: types that the methods made for storages, as `torch.TypedStorage.<name>()`, refuse.

    Returns:
        The module `torch.<name>`.

    Raises:
        ValueError: the name cannot be used, or there is no driver.
        TypeError: what is given as driver is none.
        RegistrationError: a backend is registered already, or a step failed.
    """
    check_name(name)
    refused = _dtypes(unsupported_dtype)
    # Outside the lock: what is imported by this may wait for it, in another thread.
    given = installed_drivers(name) if drivers is None else drivers
    with _lock:
        return _register(name, given, refused)


def registered_name() -> str | None:
    """The name of the backend that `register` has registered, or None."""
    return _registered


def _register(name: str, drivers: Sequence[Driver | SharedLibrary], unsupported_dtype: list[torch.dtype]) -> ModuleType:
    global _begun, _registered
    _check_place(name)
    check_attributes(name)
    missing = _missing_methods(name, unsupported_dtype)
    _check_drivers(name, drivers)
    additions = [_step(f"load the driver {each}", partial(_load, each)) for each in drivers]
    # From here on the steps change the process, and none can be undone.
    _begun = name
    _step("add the drivers", lambda: [add() for add in additions])
    _step("name the core's backend", partial(_C.set_backend_name, name), lambda: _C.backend_name() == name)
    _step("install the runtime", _C.install_runtime)
    _step("install the kernels", _install_kernels, _kernels_are_installed)
    late = {hook: partial(inductor.hook, hook) for hook in inductor.HOOKS}
    make_module = partial(make_device_module, name, late, _inductor_backend_init=inductor.initialise)
    module = _step("make the device module", make_module)
    _step("rename torch's PrivateUse1", partial(_rename, name), partial(_is_renamed, name))
    for each in missing:
        _step(
            f"generate the methods of {each.of}",
            partial(_generate, each, unsupported_dtype),
            partial(each.are_there, name),
        )
    _step(
        "register the device module",
        partial(_register_device_module, name, module),
        lambda: sys.modules.get(f"torch.{name}") is module is getattr(torch, name),
    )
    _step("let processes exchange tensors", multiprocessing.install)
    _step("offer graphs", graphs.install)
    _step("offer collectives", partial(distributed.install, name), distributed.is_installed)
    _step("correct torch where it forgets devices like this", upstream.apply)
    _step("tell libraries of the device", libraries.install)
    _step("keep Dynamo out of planners", dynamo.install)
    _registered = name
    return module


def _step(what: str, action: Callable[[], T], check: Callable[[], bool] | None = None) -> T:
    """Does one step; whatever goes wrong, and a check that does not find the step done, is told with its name."""
    try:
        result = action()
        done = check is None or check()
    except Exception as error:
        raise RegistrationError(f'registering a backend failed at the step "{what}": {error}') from error
    if not done:
        raise RegistrationError(
            f'registering a backend failed at the step "{what}": it raised no error, but had no effect in torch '
            f"{torch.__version__}; `torchgraft doctor` shows which versions are supported"
        )
    return result


# ---- Checks before anything is changed ----


def _check_place(name: str) -> None:
    """Whether this process has room for a backend of that name."""
    if _registered is not None:
        raise RegistrationError(
            f"the backend '{_registered}' is registered already, and a process can have only one: pass all drivers to "
            "that one call of torchgraft.register, or start another process (if torch imported it by itself, "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment prevents that)"
        )
    if _begun is not None:
        raise RegistrationError(
            f"registering the backend '{_begun}' has failed in this process, and its steps cannot be undone: mend what "
            "was said then, and start another process"
        )
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in (UNNAMED, name):
        raise RegistrationError(
            f"another extension has named torch's PrivateUse1 '{taken}' in this process, and that can be done once: "
            "keep one of the two from being imported (TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops those torch imports itself)"
        )


def check_attributes(name: str) -> None:
    """Raises ValueError if `torch.<name>` or the name of a method that would be generated is in use."""
    if hasattr(torch, name) and not _is_placeholder(getattr(torch, name)):
        if torch._C._get_privateuse1_backend_name() == name:
            raise RegistrationError(
                f"torch.{name} has been registered by torch._register_device_module already: leave that call out. "
                "torchgraft.register makes the device module and returns it; what yours has more can be set on it"
            )
        _refuse_name(name, f"torch.{name}")
    for methods in _METHODS:
        for owner, attribute in methods.places(name):
            if hasattr(owner, attribute) and not _is_generated(owner, attribute):
                _refuse_name(name, f"{owner.__module__}.{owner.__qualname__}.{attribute}")


def _refuse_name(name: str, existing: str) -> None:
    raise ValueError(f"{name!r} cannot name a device: {existing} exists, and registering would need that name")


def _is_placeholder(module: Any) -> bool:
    """Whether it only says why an earlier registration failed (torchgraft.autoload)."""
    return getattr(module, "_torchgraft_placeholder", False)


def _is_generated(owner: type, attribute: str) -> bool:
    """Whether a method is one that `generate_methods_for_privateuse1_backend` made."""
    found = getattr(owner, attribute)
    function = found.fget if isinstance(found, property) else found
    return getattr(function, "__module__", None) == backend_registration.__name__


def _missing_methods(name: str, unsupported_dtype: list[torch.dtype]) -> list[_Methods]:
    """What is to be generated: all that the author has not had generated already."""
    missing = [methods for methods in _METHODS if not methods.are_there(name)]
    for methods in missing:
        if any(hasattr(owner, attribute) for owner, attribute in methods.places(name)):
            raise RegistrationError(
                f"some of the methods of {methods.of} for '{name}' have been generated and some not, perhaps by an "
                "earlier call that failed: start another process, and leave "
                "torch.utils.generate_methods_for_privateuse1_backend to torchgraft.register"
            )
    if unsupported_dtype and not any(methods.option == "for_storage" for methods in missing):
        raise RegistrationError(
            "unsupported_dtype has no effect: the methods of storages have been generated already. Leave "
            "torch.utils.generate_methods_for_privateuse1_backend out, or give unsupported_dtype to that call instead"
        )
    return missing


def _dtypes(unsupported: Iterable[torch.dtype] | None) -> list[torch.dtype]:
    dtypes = list(unsupported or ())
    for each in dtypes:
        if not isinstance(each, torch.dtype):
            raise TypeError(f"unsupported_dtype has dtypes, like torch.float64, not {each!r}")
    return dtypes


def _check_drivers(name: str, drivers: Sequence[Driver | SharedLibrary]) -> None:
    if not drivers:
        raise ValueError(
            f"the backend '{name}' needs at least one driver: pass a list of them, or install a package with an entry "
            f'point "{name}" in the group "{DRIVERS}"{_installed_ones()}'
        )
    for place, driver in enumerate(drivers):
        if driver in drivers[:place]:
            raise ValueError(f"{driver} is given twice")
        if not isinstance(driver, Driver | SharedLibrary):
            advice = ": pass an instance, not the class" if isinstance(driver, type) else ""
            raise TypeError(
                f"a driver is a torchgraft.Driver or a torchgraft.SharedLibrary, not {type(driver).__name__}{advice}"
            )


def _installed_ones() -> str:
    names = backend_names()
    return f" (installed are: {', '.join(names)})" if names else ""


# ---- The steps ----


def _load(driver: Driver | SharedLibrary) -> Callable[[], None]:
    """What adds the driver to the core; loading it, which may fail, is done now."""
    if driver.kernel_dialect is not None:
        from torchgraft.codegen.dialects import register_dialect  # only where there is one: kernels come later

        register_dialect(driver.kernel_dialect)
    if isinstance(driver, Driver):
        return lambda: _C.add_python_driver(driver)
    table = _C.load_driver(fspath(driver.path), driver.symbol)
    backend.libraries.append((fspath(driver.path), driver.symbol))
    return lambda: _C.add_driver(table)


def _install_kernels() -> None:
    """The core's kernels now; the op library, which takes longer, when the device is first used."""
    _C.install_kernels()
    backend.when_opened(partial(warn_of_mistakes, warn_user))
    backend.when_opened(_install_ops)
    backend.when_opened(wait_at_exit)


def _kernels_are_installed() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "PrivateUse1")


def _install_ops() -> None:
    from torchgraft import ops

    ops.install()


def _rename(name: str) -> None:
    if backend_registration._privateuse1_backend_name != name:
        backend_registration.rename_privateuse1_backend(name)


def _is_renamed(name: str) -> bool:
    return torch.device(f"{name}:1").type == name and torch.accelerator.current_accelerator() == torch.device(name)


def _generate(methods: _Methods, unsupported_dtype: list[torch.dtype]) -> None:
    options = {each.option: each is methods for each in _METHODS}
    backend_registration.generate_methods_for_privateuse1_backend(
        **options, unsupported_dtype=unsupported_dtype or None
    )


def _register_device_module(name: str, module: ModuleType) -> None:
    if hasattr(torch, name):  # what told of an earlier error
        delattr(torch, name)
    torch._register_device_module(name, module)
