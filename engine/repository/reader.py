"""From the repositories to what the catalog is told.

It fetches a model, reads its configuration, and compares by content. Everything that touches a disk or a
network runs on threads. A thread that hangs is left behind and holds up no other work.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from actors.catalog.found import FoundModel, Override
from actors.catalog.operations import Listing, Unreadable
from actors.seams.threads import in_thread
from actors.values.errors import InvalidArgument, PermissionDenied
from actors.values.hardware.gpus import Gpu
from actors.values.interfaces import DUPLICATE_REASON
from actors.values.specs import ModelKey
from engine.config.load import load_model_config
from engine.environments.builder import EnvironmentBuilder
from engine.environments.cache import Environments, Standing
from engine.environments.declared import Environment
from engine.models.links import Links
from engine.processes import users
from engine.processes.agents.chain import Chain
from engine.processes.agents.process import AgentFailed
from engine.processes.backends import BackendTraits
from engine.processes.placement import place, seat, undefined_policies
from engine.provenance.restrictions import NONE, Restrictions
from engine.repository import uploaded
from engine.repository.agents import AgentRunner, all_of, run
from engine.repository.copies import Copy, Janitor, Removal
from engine.repository.fingerprint import Digests
from engine.repository.manifest import verify_manifest
from engine.repository.signed import Refused, SignedModels
from engine.repository.source import (
    FetchCancelled,
    Fetched,
    FetchFailed,
    FetchProgress,
    Source,
    SourceUnavailable,
)
from engine.settings.management import Uploads
from engine.settings.sandbox import SandboxSettings

# Of each repository, so that one that hangs does not use up the reads of the others.
READS_AT_ONCE: Final = 8
# A repository that can't be listed by then counts as one that can't be read.
LISTING_SECONDS: Final = 20.0

Report = Callable[[str, Mapping[str, object]], None]

_UPLOADED: Final = (
    "it was uploaded, and repository agents run outside of any sandbox, and this server shuts uploaded models"
    " in (--uploads=strict)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How configurations are read; see `engine.config.load.load_model_config`."""

    backends: Mapping[str, BackendTraits]
    gpus: Sequence[Gpu] = ()
    environ: Mapping[str, str] | None = None
    backend_settings: Mapping[str, Mapping[str, str]]
    config_name: str = ""
    auto_complete: bool = True
    namespacing: bool = False
    host_policies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # the cores of each
    execution_timeout: float = 0.0  # of models that have none of their own; 0: none
    floor: SandboxSettings = field(default_factory=SandboxSettings)
    restrictions: Restrictions = NONE
    uploads: Uploads = Uploads.ON
    links: Links = Links.INSIDE
    signed: SignedModels | None = None  # admits models, where only signed ones are
    # After which a source that does not list its models counts as unavailable.
    listing_seconds: float = LISTING_SECONDS


class RepositoryReader:
    """Implements `actors.catalog.operations.ModelSource` over local and remote repositories."""

    def __init__(
        self,
        sources: Sequence[Source],
        options: ReadOptions,
        janitor: Janitor,
        digests: Digests,
        builder: EnvironmentBuilder | None = None,
        agents: AgentRunner | None = None,
    ) -> None:
        """`digests` are shared with the local sources, so that no file is read twice.

        `builder` makes what Python models run in. Without a builder they run on the server's own interpreter,
        whatever they ask for. `agents` runs repository agents; without it only the built-in one is known.
        """
        self._agents = agents
        self._builder = builder
        self._standing: Environments | None = None if builder is None else builder.cache
        self.sources = sources
        self._digests = digests
        self._options = options
        self._janitor = janitor
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        self._uploads = trio.CapacityLimiter(READS_AT_ONCE)

    def add(self, source: Source) -> None:
        """Have the models of another repository be found from now on."""
        self.sources = (*self.sources, source)

    def remove(self, uri: str) -> None:
        """Have no more models of a repository be found. What is being read of it goes on."""
        self.sources = tuple(source for source in self.sources if source.uri != uri)
        self._limiters.pop(uri, None)

    def _limiter(self, source: Source) -> trio.CapacityLimiter:
        return self._limiters.setdefault(source.uri, trio.CapacityLimiter(READS_AT_ONCE))

    async def listing(self) -> Listing:
        """Return every model of the repositories that can be listed, and why the others can't."""
        listed, failures = await self._listed(self.sources)
        keys = sorted({self._key(source, name) for source, names in listed for name in names})
        return Listing(keys=keys, failures=failures)

    async def read(self, key: ModelKey, override: Override | None, report: Report) -> FoundModel | None:
        """Return a model as it stands, downloaded if it is not here.

        See `actors.catalog.operations.ModelSource`.
        """
        if self._options.signed is not None and override is not None and override.config is not None:
            raise InvalidArgument(
                f"model '{key.name}' is not loaded with the configuration or files of a request: no signature"
                " covers them, and --require-signed forbids that; put them into the signed model"
            )
        if self._options.uploads is Uploads.OFF and override is not None and override.files:
            raise PermissionDenied(
                f"model '{key.name}' is not loaded with the files of a request: this server takes none"
                " (--uploads=off); put them into a model repository, and load the model without files"
            )
        handover = _Handover()
        files = uploaded.normalised(override.files) if override is not None else {}
        read: Callable[[], FoundModel | _Unbuilt]
        if files:
            limiter, read = self._uploads, partial(self._read_files, key, override, files, handover)
        else:
            having = await self._having(key)
            if not having:
                return None
            if len(having) > 1:
                return FoundModel(
                    key=key,
                    reason=DUPLICATE_REASON,
                    duplicate=True,
                    warnings=("not unique across all model repositories",),
                )
            limiter = self._limiter(having[0])
            read = partial(self._read, key, override, having[0], report, handover)
        try:
            found = await in_thread(read, abandon_on_cancel=True, limiter=limiter)
            if isinstance(found, _Unbuilt) and self._builder is not None:
                outcomes = await self._builder.prepare(found.environments, report)
                again = partial(found.again, Standing(self._builder.cache, outcomes))
                found = await in_thread(again, abandon_on_cancel=True, limiter=limiter)
            # Its files changed meanwhile, or what was built has been removed.
            if isinstance(found, _Unbuilt):
                raise Unreadable(f"the environment of model '{key.name}' is not what it was; load it again")
        except BaseException:
            if (removal := handover.give_up()) is not None:
                self._janitor.remove_later(removal)
            raise
        if handover.removal is None:
            return found
        return replace(found, copy=Copy(handover.removal, self._janitor, handover.told))

    async def _listed(
        self, sources: Sequence[Source]
    ) -> tuple[list[tuple[Source, Sequence[str]]], list[str]]:
        """Return the model names of each source that can be asked, and why the others can't."""
        listed: list[tuple[Source, Sequence[str]]] = []
        failures: list[str] = []

        async def ask(source: Source) -> None:
            try:
                with trio.fail_after(self._options.listing_seconds):
                    names = await in_thread(
                        source.names, abandon_on_cancel=True, limiter=self._limiter(source)
                    )
            except SourceUnavailable as error:
                failures.append(str(error))
            except trio.TooSlowError:
                failures.append(
                    f"{source.uri} could not be listed within {self._options.listing_seconds:g} s"
                )
            else:
                listed.append((source, names))

        async with trio.open_nursery() as nursery:
            for source in sources:
                nursery.start_soon(ask, source)
        return listed, failures

    def _key(self, source: Source, name: str) -> ModelKey:
        return ModelKey(name, source.uri if self._options.namespacing else "")

    def _read(
        self,
        key: ModelKey,
        override: Override | None,
        source: Source,
        report: Report,
        handover: _Handover,
    ) -> FoundModel | _Unbuilt:
        try:
            fetched = _fetch(source, key.name, report, handover)
        except SourceUnavailable as error:
            raise Unreadable(str(error)) from error
        except FetchCancelled as error:
            raise Unreadable("given up") from error
        except FetchFailed as error:
            return _unreadable(key, error)
        release = partial(source.release, fetched.path)
        handover.offer(Removal(fetched.path, release))
        if self._options.signed is not None:
            try:
                fetched = _admitted(self._options.signed, fetched, handover)
            except Refused as error:
                return _refused(key, error)
            except FetchCancelled as error:
                raise Unreadable("given up") from error
            except OSError as error:
                raise Unreadable(f"{fetched.path} can't be read: {error.strerror or error}") from error
            release()
        return self._after_agents(key, fetched, override, handover, shut_in=False)

    def _read_files(
        self,
        key: ModelKey,
        override: Override | None,
        files: Mapping[str, bytes],
        handover: _Handover,
    ) -> FoundModel | _Unbuilt:
        parent = Path(tempfile.mkdtemp(prefix="tritium-upload-"))
        handover.offer(Removal(parent, partial(shutil.rmtree, parent, ignore_errors=True)))
        try:
            users.share(parent)
            directory = uploaded.write(parent, key.name, files)
        except (OSError, UnicodeError) as error:  # a name that no file can have, a disk that is full
            return _unreadable(key, error)
        fetched = Fetched(path=directory, contents=None)
        shut_in = self._options.uploads is Uploads.STRICT
        return self._after_agents(key, fetched, override, handover, shut_in=shut_in, is_uploaded=True)

    def _after_agents(
        self,
        key: ModelKey,
        fetched: Fetched,
        override: Override | None,
        handover: _Handover,
        *,
        shut_in: bool,
        is_uploaded: bool = False,
    ) -> FoundModel | _Unbuilt:
        """Run the model's repository agents, and read what they leave."""
        options = self._options
        if self._agents is None:
            return self._found(key, fetched, override, is_uploaded=is_uploaded)
        try:
            chain = self._agents.chain(
                key.name,
                fetched.path,
                config_name=options.config_name,
                override=None if override is None else override.config,
                signed=options.signed is not None,
                own_only=options.uploads is Uploads.STRICT and not shut_in,
            )
            if chain is None:
                return self._found(key, fetched, override, is_uploaded=is_uploaded)
            if shut_in:
                raise AgentFailed(_UPLOADED)
            if damaged := self._damaged(key, fetched):
                return damaged
            handover.follow(chain)
            fetched = run(chain, fetched)
        except AgentFailed as error:
            reason = f"Invalid argument: model '{key.name}' is not loaded: {error}"
            return FoundModel(key=key, reason=reason, readable=False, errors=[reason])
        return self._found(key, fetched, override, is_uploaded=is_uploaded, agents_ran=True)

    async def _having(self, key: ModelKey) -> list[Source]:
        """Return the sources that have the model. Raises Unreadable if none has and one can't be asked."""
        listed, failures = await self._listed(
            [source for source in self.sources if key.namespace in ("", source.uri)]
        )
        having = [source for source, names in listed if key.name in names]
        if failures and not having:
            raise Unreadable("; ".join(failures))
        return having

    def _found(
        self,
        key: ModelKey,
        fetched: Fetched,
        override: Override | None,
        environments: Environments | None = None,
        *,
        is_uploaded: bool = False,
        agents_ran: bool = False,
    ) -> FoundModel | _Unbuilt:
        options, contents = self._options, fetched.contents
        shut_in = is_uploaded and options.uploads is Uploads.STRICT
        if damaged := self._damaged(key, fetched):
            return damaged
        loaded = load_model_config(
            fetched.path,
            backends=options.backends,
            gpus=len(options.gpus),
            environ=options.environ,
            backend_settings=options.backend_settings,
            config_name=options.config_name,
            auto_complete=options.auto_complete,
            execution_timeout=options.execution_timeout,
            floor=options.floor.for_uploads() if shut_in else options.floor,
            override=None if override is None else override.config,
            only=() if override is None else override.versions,
            namespace=key.namespace,
            content=None if contents is None else _by_version(contents.shared, contents.versions),
            without_adapters=(
                None if contents is None else _by_version(contents.shared, contents.without_adapters)
            ),
            environments=environments or self._standing,
            restrictions=options.restrictions,
            links=options.links,
            model_name=key.name,
            agents=None if self._agents is None else self._agents.known,
            agents_ran=agents_ran,
            renamed=bool(fetched.name),
        )
        if loaded.unbuilt and shut_in:
            return _brings_environment(key)
        if loaded.unbuilt:
            again = partial(
                self._found, key, fetched, override, is_uploaded=is_uploaded, agents_ran=agents_ran
            )
            return _Unbuilt(loaded.unbuilt, again)
        return FoundModel(
            key=key,
            specs=tuple(seat(place(spec, options.host_policies), options.gpus) for spec in loaded.specs),
            versions=loaded.versions,
            reason=loaded.reason,
            reasons=loaded.reasons,
            readable=loaded.readable,
            content="" if contents is None else contents.digest,
            errors=[str(problem) for problem in loaded.errors],
            warnings=[
                *map(str, loaded.warnings),
                *undefined_policies(loaded.specs, options.host_policies),
            ],
        )

    def _damaged(self, key: ModelKey, fetched: Fetched) -> FoundModel | None:
        """Return what is told of a model whose files are not those of its manifest, if it has one."""
        if fetched.verified:
            return None
        wrong = verify_manifest(fetched.path, digests=self._digests, links=self._options.links)
        if not wrong:
            return None
        return FoundModel(
            key=key,
            reason=wrong[0].reason,
            readable=False,
            content="" if fetched.contents is None else fetched.contents.digest,
            errors=[str(problem) for problem in wrong],
        )


@dataclass(frozen=True, slots=True)
class _Unbuilt:
    """A model whose environments have to be built; `again` reads it with the outcome of that."""

    environments: Sequence[Environment]
    again: Callable[[Environments], FoundModel | _Unbuilt]


class _Handover:
    """What a thread made for a caller that may have left meanwhile.

    Either the thread or the caller has it removed, or its user does.
    """

    def __init__(self) -> None:
        self.given_up = False
        self.removal: Removal | None = None
        self.told: Callable[[bool], None] | None = None
        self._lock = threading.Lock()

    def offer(self, removal: Removal) -> None:
        """There is something to be removed. For the thread."""
        with self._lock:
            if not self.given_up:
                self.removal = removal
                return
        removal.run()

    def follow(self, chain: Chain) -> None:
        """The model's agents are about to run: they end before what is there already is removed.

        For the thread. Nothing may be offered after this.
        """
        with self._lock:
            before = self.removal
            steps = [chain.end] if before is None else [chain.end, before.run]
            self.told = lambda applied: chain.settled(applied=applied)
            if not self.given_up:
                path = Path("agents") if before is None else before.path
                self.removal = Removal(path, all_of(steps))
                return
        raise AgentFailed("the load was given up")

    def give_up(self) -> Removal | None:
        """Give it up; return how to remove what there is.

        This is for the caller, which need not come back.
        """
        with self._lock:
            self.given_up = True
            return self.removal


def _admitted(signed: SignedModels, fetched: Fetched, handover: _Handover) -> Fetched:
    """Return the private copy of a signed model, in whose place it is offered to be removed.

    Raises as `SignedModels.admit`.
    """
    admitted = signed.admit(fetched.path, cancelled=lambda: handover.given_up)
    handover.offer(admitted.removal)
    return replace(fetched, path=admitted.removal.path, contents=admitted.contents, verified=True)


def _refused(key: ModelKey, error: Refused) -> FoundModel:
    hint = f" ({error.hint})" if error.hint else ""
    reason = f"Invalid argument: model '{key.name}' is refused by --require-signed: {error}"
    return FoundModel(key=key, reason=reason, readable=False, errors=[f"{reason}{hint}"])


def _brings_environment(key: ModelKey) -> FoundModel:
    reason = (
        f"Invalid argument: model '{key.name}' was uploaded, and an environment for it is not built: its"
        " build runs code outside of any sandbox, and this server shuts uploaded models in (--uploads=strict)"
    )
    return FoundModel(key=key, reason=reason, readable=False, errors=[reason])


def _unreadable(key: ModelKey, error: Exception) -> FoundModel:
    return FoundModel(key=key, reason=f"Internal: {error}", readable=False)


def _fetch(source: Source, name: str, report: Report, handover: _Handover) -> Fetched:
    """Fetch a model; its lane shows how far that has come."""
    details: dict[str, object] = {}

    def progress(now: FetchProgress) -> None:
        begun = bool(details)
        details.update(
            files=now.files, files_done=now.files_done, bytes=now.nbytes, bytes_done=now.bytes_done
        )
        if not begun:
            trio.from_thread.run_sync(report, "downloading", details)

    return source.fetch(name, progress=progress, cancelled=lambda: handover.given_up)


def _by_version(shared: str, versions: Mapping[int, str]) -> dict[int, str]:
    return {
        version: hashlib.sha256(f"{shared} {digest}".encode()).hexdigest()
        for version, digest in versions.items()
    }
