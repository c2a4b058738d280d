"""The rules that kube-proxy would write on a node for services of pods, by its modes `nftables` and `iptables`.

One service has its chains whole, as kube-proxy has them; the others share theirs, which no packet of the measurement
meets. What a packet does meet, verdict maps there and a chain with a rule for each service here, is as long as it
would be. The service that is asked stands in the middle of the chain, as services do on average.
"""

from __future__ import annotations

PODS = "10.244.0.0/16"

_NFTABLES = """
table ip kube-proxy {
  set cluster-ips { type ipv4_addr; }
  set nodeport-ips { type ipv4_addr; elements = { %(node)s } }
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
  map no-endpoint-nodeports { type inet_proto . inet_service : verdict; }
  map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
  chain endpoint-web {
    ip saddr %(backend)s jump mark-for-masquerade
    meta l4proto tcp dnat to %(backend)s:%(backend_port)d
  }
  chain service-web {
    ip daddr %(address)s tcp dport %(port)d ip saddr != %(pods)s jump mark-for-masquerade
    numgen random mod 1 vmap { 0 : goto endpoint-web }
  }
  chain service-other { return; }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports
  }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain nodeport-endpoints-check {
    ip daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports
  }
  chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
  chain cluster-ips-check { ip daddr @cluster-ips reject; }
  chain filter-prerouting-pre-dnat {
    type filter hook prerouting priority -110;
    ct state new jump firewall-check
  }
  chain filter-input {
    type filter hook input priority 0;
    ct state new jump nodeport-endpoints-check
    ct state new jump service-endpoints-check
  }
  chain filter-forward {
    type filter hook forward priority 0;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output-pre-dnat {
    type filter hook output priority -110;
    ct state new jump firewall-check
  }
  chain filter-output {
    type filter hook output priority 0;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
}
"""

_IPTABLES = """
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-WEB - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-OTHER - [0:0]
:KUBE-SVC-WEB - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-WEB -s %(backend)s/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-WEB -p tcp -m tcp -j DNAT --to-destination %(backend)s:%(backend_port)d
%(services)s
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-WEB ! -s %(pods)s -d %(address)s/32 -p tcp -m tcp --dport %(port)d -j KUBE-MARK-MASQ
-A KUBE-SVC-WEB -j KUBE-SEP-WEB
COMMIT
"""


def _addresses(address: str, count: int) -> list[str]:
    """Those of all services, the one that is asked in the middle."""
    others = [f"10.{97 + (n >> 16)}.{n >> 8 & 255}.{n & 255}" for n in range(count - 1)]
    others.insert(count // 2, address)
    return others


_NFTABLES_NODE_PORT = """
table ip kube-proxy {
  chain external-web {
    jump mark-for-masquerade
    goto service-web
  }
}
add element ip kube-proxy service-nodeports { tcp . %d : goto external-web }
"""

_IPTABLES_NODE_PORT = """\
-A KUBE-EXT-WEB -j KUBE-MARK-MASQ
-A KUBE-EXT-WEB -j KUBE-SVC-WEB
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web" -m tcp --dport %d -j KUBE-EXT-WEB
COMMIT
"""


def nftables(
    count: int, node: str, address: str, port: int, backend: str, backend_port: int, node_port: int = 0
) -> str:
    """For `nft -f`, with that many services; `node_port`: of the one that is asked, with the policy `Cluster`."""
    text = _NFTABLES % {
        "node": node, "address": address, "port": port, "backend": backend, "backend_port": backend_port,
        "pods": PODS,
    }  # fmt: skip
    places = _addresses(address, count)
    elements = ", ".join(
        f"{each} . tcp . {port} : goto service-{'web' if each == address else 'other'}" for each in places
    )
    return (
        f"{text}add element ip kube-proxy cluster-ips {{ {', '.join(places)} }}\n"
        f"add element ip kube-proxy service-ips {{ {elements} }}\n"
        + (_NFTABLES_NODE_PORT % node_port if node_port else "")
    )


def iptables(count: int, address: str, port: int, backend: str, backend_port: int, node_port: int = 0) -> str:
    """For `iptables-restore`, with that many services; `node_port` as above."""
    rules = "\n".join(
        f'-A KUBE-SERVICES -d {each}/32 -p tcp -m comment --comment "default/{each} cluster IP"'
        f" -m tcp --dport {port} -j KUBE-SVC-{'WEB' if each == address else 'OTHER'}"
        for each in _addresses(address, count)
    )
    text = _IPTABLES % {
        "services": rules, "address": address, "port": port, "backend": backend, "backend_port": backend_port,
        "pods": PODS,
    }  # fmt: skip
    if not node_port:
        return text
    text = text.replace(
        ":KUBE-NODEPORTS - [0:0]\n:KUBE-POST", ":KUBE-EXT-WEB - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POST"
    )
    return text.removesuffix("COMMIT\n") + _IPTABLES_NODE_PORT % node_port
