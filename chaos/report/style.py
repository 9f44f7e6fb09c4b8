"""How the page looks: one style sheet, for light and for dark.

Colour-blind readers can tell its colours apart.
"""

from __future__ import annotations

from typing import Final

SHEET: Final = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --ink: #1c1e21; --soft: #5e646c; --rule: #e3e4e6; --odd: #f1f2f3; --even: #e9ebed; --band: #f5c98a66;
  --good: #8fbfe0; --sent: #1f5f8f; --p50: #1f5f8f; --p99: #b3541e; --errors: #d9822b; --silent: #6a3d9a;
  --bad: #c4162a; --fine: #1f7a3d; --unsure: #7a6a1f; --trend: #b3541e;
  --worker: #d9822b; --hang: #8b5fbf; --actor: #1f7fa8; --supervisor: #14595f; --other: #8a9099; }
@media (prefers-color-scheme: dark) { :root {
  --page: #16181b; --ink: #e6e7e9; --soft: #a0a6ae; --rule: #33373c; --odd: #1c1f23; --even: #22262b; --band: #8a5a1a66;
  --good: #2f6d99; --sent: #8fc7ef; --p50: #8fc7ef; --p99: #f0a070; --errors: #f0a24a; --silent: #c79bf0;
  --bad: #ff6b75; --fine: #6fcf8f; --unsure: #d6c25a; --trend: #f0a070;
  --worker: #f0a24a; --hang: #c79bf0; --actor: #5fbfe8; --supervisor: #4fb0b5; --other: #9aa1aa; } }
body { margin: 0 auto; max-width: 1280px; padding: 24px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; } h3 { font-size: 15px; margin: 16px 0 4px; }
.verdict { font-size: 17px; font-weight: 600; margin: 0 0 16px; } .soft { color: var(--soft); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } .figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.reached { color: var(--fine); } .missed { color: var(--bad); font-weight: 600; } .unmeasured { color: var(--unsure); }
li { margin: 4px 0; overflow-wrap: anywhere; }
svg { width: 100%; min-width: 900px; height: auto; display: block; } svg text { fill: var(--ink); font: 11px system-ui, sans-serif; }
svg .heading { font-weight: 600; font-size: 12px; } svg .tick, svg .phase-name { fill: var(--soft); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
.grid { stroke: var(--rule); stroke-width: 1; } .phase.odd { fill: var(--odd); } .phase.even { fill: var(--even); }
.good { fill: var(--good); } .sent { fill: none; stroke: var(--sent); stroke-width: 1.2; }
.p50, .p99, .trend { fill: none; stroke-width: 1.4; } .p50 { stroke: var(--p50); } .p99 { stroke: var(--p99); stroke-dasharray: 4 2; }
.trend { stroke: var(--trend); stroke-width: 2; stroke-dasharray: 6 3; }
.errors { fill: var(--errors); } .silent { fill: var(--silent); } .unexcused { fill: var(--bad); stroke: var(--page); }
.band { fill: var(--band); } .hover { fill: transparent; } .hover:hover { fill: var(--ink); fill-opacity: .12; }
.fault.worker { fill: var(--worker); } .fault.hang { fill: var(--hang); } .fault.actor { fill: var(--actor); }
.fault.supervisor { fill: var(--supervisor); } .fault.other { fill: var(--other); } .fault.trouble { stroke: var(--bad); stroke-width: 2; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; list-style: none; padding: 0; margin: 0 0 8px; font-size: 13px; color: var(--soft); }
.key i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; border-radius: 2px; vertical-align: -1px; }
"""
