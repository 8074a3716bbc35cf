"""A host behind a translator, and a server on two addresses beyond it:

inside 10.0.0.2 ---- 10.0.0.1 translator 198.51.100.1 ---- 198.51.100.2, 198.51.100.3 server

How the translator maps and filters is a set of nftables rules. Linux by itself keeps a port where it can and lets in only what answers.
"""

import subprocess
from pathlib import Path

from harness.topology import PREFIX, Namespace, Topology, _cable, _ip

INSIDE = "10.0.0.2"
OUTSIDE = "198.51.100.1"
SERVER = ("198.51.100.2", "198.51.100.3")

_RULES = """
table ip nat {{
  set heard {{ type ipv4_addr . inet_service; flags dynamic; timeout 60s; size 1000; }}
  chain outward {{ type nat hook postrouting priority 100; {outward} }}
  chain inward {{ type nat hook prerouting priority -100; {inward} }}
}}
"""

#: What is done with what leaves, and with what comes in unasked.
TRANSLATORS = {
    "none": ("", ""),
    # Everything comes in, from inside too, which is hairpinning.
    "full cone": (
        f'oifname "server" snat to {OUTSIDE}; oifname "inside" ip saddr 10.0.0.0/24 snat to {OUTSIDE};',
        f"ip daddr {OUTSIDE} meta l4proto udp dnat to {INSIDE};",
    ),
    "address restricted": (
        f'oifname "server" meta l4proto udp update @heard {{ ip daddr . udp sport }} snat to {OUTSIDE};',
        f'iifname "server" meta l4proto udp ip saddr . udp dport @heard dnat to {INSIDE};',
    ),
    "port restricted": (f'oifname "server" snat to {OUTSIDE};', ""),
    # Towards each address from ports of its own, so that the two always differ.
    "symmetric by address": (
        " ".join(
            f'oifname "server" ip daddr {address} meta l4proto udp snat to {OUTSIDE} : jhash udp sport mod 10000 offset {first};'
            for address, first in zip(SERVER, (10_000, 20_000))
        ),
        "",
    ),
    # From one port after the other, so that no two are the same.
    "symmetric": (f'oifname "server" meta l4proto udp snat to {OUTSIDE} : numgen inc mod 20000 offset 10000;', ""),
}


class Translated:
    """The three hosts, with one of the translators. What an earlier run left is removed first."""

    def __init__(self, translator: str):
        self.inside = Namespace(PREFIX + "inside")
        self.translator = Namespace(PREFIX + "translator")
        self.server = Namespace(PREFIX + "server")
        self._rules = _RULES.format(outward=TRANSLATORS[translator][0], inward=TRANSLATORS[translator][1])

    def __enter__(self) -> "Translated":
        try:
            self._up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.down()

    down = Topology.down

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        return (self.inside, self.translator, self.server)

    def _up(self) -> None:
        self.down()
        inside, translator, server = (namespace.name for namespace in self.namespaces)
        for name in (inside, translator, server):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _cable(inside, "translator", translator, "inside")
        _cable(translator, "server", server, "translator")
        for name, interface, addresses in (
            (inside, "translator", (INSIDE,)),
            (translator, "inside", ("10.0.0.1",)),
            (translator, "server", (OUTSIDE,)),
            (server, "translator", SERVER),
        ):
            for address in addresses:
                _ip("-n", name, "address", "add", f"{address}/24", "dev", interface)
        _ip("-n", inside, "route", "add", "default", "via", "10.0.0.1")
        # For the case without translation.
        _ip("-n", server, "route", "add", "10.0.0.0/24", "via", OUTSIDE)
        self.forget_after(120)
        self.translator.call(lambda: Path("/proc/sys/net/ipv4/ip_forward").write_text("1"))
        nft = self.translator.argv("nft", "-f", "-")
        subprocess.run(nft, input=self._rules, text=True, check=True)

    def forget_after(self, seconds: int) -> None:
        """Sets how long a mapping lives without traffic."""

        def set_timeouts():
            for name in ("nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"):
                setting = Path("/proc/sys/net/netfilter", name)
                # Not there before the first rule.
                if setting.exists():
                    setting.write_text(str(seconds))

        self.translator.call(set_timeouts)
