"""`tritium fleet proxy-config`: written once, or kept as the fleet is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import trio

from engine.cli.fleet.steering import Unfinished, look_once, say, watched
from engine.fleet.picture import Picture
from engine.fleet.proxies.envoy import envoy
from engine.fleet.proxies.haproxy import haproxy
from engine.fleet.proxies.homes import Homes
from engine.fleet.proxies.keeping import Kept
from engine.fleet.proxies.members import upstreams
from engine.fleet.proxies.values import ProxyOptions, Unwritable

_PATIENCE: Final = 60.0  # seconds after the start
_NO_GRPC: Final = "no replica has an address of `grpc` in the fleet's file: the configuration has no gRPC"


def proxy_config(options: argparse.Namespace) -> int:
    """Write the configuration of a balancer."""
    try:
        settings = ProxyOptions(
            address=options.address,
            http_port=options.http_port,
            grpc_port=options.grpc_port,
            idempotent=options.idempotent,
            timeout=options.silence,
            retry_buffer=options.retry_buffer,
        )
        if options.watch is not None:
            return _follow(options, settings)
        return _write(options, settings)
    except Unwritable as error:
        raise Unfinished(str(error), 1) from error


def _write(options: argparse.Namespace, settings: ProxyOptions) -> int:
    homes = Homes()
    picture = look_once(options)
    written = _configuration(options, settings, homes, picture)
    if silent := homes.unknown(picture):
        say(f"{', '.join(silent)} did not answer; written as if every model were there")
    if not any(each.grpc for each in picture.members):
        say(_NO_GRPC)
    if options.output is None:
        sys.stdout.write(written)
        return 0
    return 0 if trio.run(_kept(options).take, written) else 1


def _follow(options: argparse.Namespace, settings: ProxyOptions) -> int:
    kept, homes = _kept(options), Homes()
    patient_until: list[float] = []

    async def follow(picture: Picture) -> None:
        if not patient_until:
            patient_until.append(trio.current_time() + _PATIENCE)
        try:
            written = _configuration(options, settings, homes, picture)
        except Unwritable as error:
            kept.trouble(f"{kept.path} stays as it is: {error}")
            return
        silent = ", ".join(homes.unknown(picture))
        if silent and kept.path.exists() and trio.current_time() < patient_until[0]:
            # The file may say what they have.
            kept.trouble(f"{kept.path} stays as it is until {silent} answers, for {_PATIENCE:g} s at most")
            return
        await kept.take(written)

    return watched(options, follow)


def _configuration(
    options: argparse.Namespace, settings: ProxyOptions, homes: Homes, picture: Picture
) -> str:
    """Return the configuration for what a look shows. Raises Unwritable."""
    if not picture.members:
        raise Unwritable(picture.why or "the fleet has no replicas")
    balanced = upstreams(picture.members, homes.found(picture))
    return {"haproxy": haproxy, "envoy": envoy}[options.proxy](balanced, settings)


def _kept(options: argparse.Namespace) -> Kept:
    return Kept(Path(options.output), options.reload, say)
