"""NAT behaviour discovery (RFC 5780): what the clients say of a translator is what the translator does.

Our server with coturn's client and with ours, and coturn's server with ours.
"""

import contextlib
import itertools

import pytest

from harness import binding, nat, process, waiting

#: The server's own port and the other one that it answers from.
PORTS = (3478, 3479)

PAIRS = [("turnbuckle", "turnbuckle"), ("turnbuckle", "coturn"), ("coturn", "turnbuckle")]
_IDS = [f"{server}'s server, {client}'s client" for server, client in PAIRS]

INDEPENDENT, BY_ADDRESS, BY_BOTH = "Endpoint Independent", "Address Dependent", "Address and Port Dependent"
UNTRANSLATED = "No NAT! (Endpoint Independent Mapping)"

#: What each translator does with ports, and what it lets in.
BEHAVIOURS = {
    "none": (UNTRANSLATED, INDEPENDENT),
    "full cone": (INDEPENDENT, INDEPENDENT),
    "address restricted": (INDEPENDENT, BY_ADDRESS),
    "port restricted": (INDEPENDENT, BY_BOTH),
    "symmetric by address": (BY_ADDRESS, BY_BOTH),
    "symmetric": (BY_BOTH, BY_BOTH),
}


@contextlib.contextmanager
def _served(hosts, server, program, coturns_name):
    addresses = [f"--listening-ip={address}" for address in nat.SERVER]
    if server == "turnbuckle":
        command = (coturns_name("turnbuckle"), "serve", "--stun-only", "--rfc5780", *addresses)
    else:
        quiet = ("--no-cli", "--no-tls", "--no-dtls", "--log-file", "stdout", "--pidfile", "/dev/null")
        command = (program("turnserver"), "-n", "--stun-only", *quiet, *addresses)
    with process.Process(hosts.server, *command) as running:
        # From the server's own host, so that the translator has heard of nobody yet.
        for address, port in itertools.product(nat.SERVER, PORTS):
            waiting.await_condition(
                lambda address=address, port=port: binding.answers(hosts.server, nat.SERVER[0], address, port, timeout=1),
                f"an answer from {address}:{port}",
            )
        yield running


def _discover(hosts, client, program, coturns_name, *flags):
    name = "turnutils_natdiscovery"
    path = coturns_name(name) if client == "turnbuckle" else program(name)
    with process.Process(hosts.inside, path, "-L", nat.INSIDE, *flags, nat.SERVER[0]) as running:
        assert running.wait() == 0, running.output
        print(running.output)
        return running.output


@pytest.mark.parametrize(("server", "client"), PAIRS, ids=_IDS)
@pytest.mark.parametrize("translator", BEHAVIOURS)
def the_verdict_is_what_the_translator_does(translator, server, client, program, coturns_name):
    mapping, filtering = BEHAVIOURS[translator]
    if (translator, client) == ("symmetric by address", "coturn"):
        # Its third question goes to the OTHER-ADDRESS of the second answer. That is the first address again (RFC 5780 §6.1, table 1),
        # except for coturn's server, which names the second address there.
        mapping = BY_BOTH
    with nat.Translated(translator) as hosts, _served(hosts, server, program, coturns_name):
        output = _discover(hosts, client, program, coturns_name, "-m", "-f")
    if mapping != UNTRANSLATED:
        mapping = f"NAT with {mapping} Mapping!"
    assert f"\n{mapping}\n" in output
    assert f"\nNAT with {filtering} Filtering!\n" in output
    assert "No ALG: Mapped == XOR-Mapped" in output


@pytest.mark.parametrize(("server", "client"), PAIRS, ids=_IDS)
def padded_answers_come_through_in_fragments(server, client, program, coturns_name):
    with nat.Translated("full cone") as hosts, _served(hosts, server, program, coturns_name):
        output = _discover(hosts, client, program, coturns_name, "-f", "-P")
    assert f"\nNAT with {INDEPENDENT} Filtering!\n" in output


@pytest.mark.parametrize(("server", "client"), PAIRS, ids=_IDS)
@pytest.mark.parametrize(("forgotten_after", "idle", "lives"), [(60, 1, True), (3, 5, False)], ids=["before", "after"])
def a_mapping_is_found_alive_before_it_is_forgotten_and_not_after(
    forgotten_after, idle, lives, server, client, program, coturns_name
):
    with nat.Translated("port restricted") as hosts, _served(hosts, server, program, coturns_name):
        hosts.forget_after(forgotten_after)
        output = _discover(hosts, client, program, coturns_name, "-t", "-T", str(idle))
    assert "RFC 5780 response 1" in output
    assert ("RFC 5780 response 2" in output) == lives
    assert ("STUN receive timeout.." in output) != lives


@pytest.mark.parametrize(("server", "client"), PAIRS, ids=_IDS)
@pytest.mark.parametrize(("translator", "leads_back"), [("full cone", True), ("symmetric", False)])
def hairpinning_is_found_where_it_is(translator, leads_back, server, client, program, coturns_name):
    with nat.Translated(translator) as hosts, _served(hosts, server, program, coturns_name):
        output = _discover(hosts, client, program, coturns_name, "-H")
    assert ("Received a request (maybe a successful hairpinning)" in output) == leads_back
