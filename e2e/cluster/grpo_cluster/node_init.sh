# Process 1 of a node, in new network, mount, process and host name namespaces (see node.py).
# When one of its three programs ends, the node ends.
set -euo pipefail

hostname "$NODE_NAME"
# Paths below these are compiled into containerd, the CNI plug-ins and the kubelet.
for folder in /run /var/lib /var/log; do
  mount -t tmpfs -o mode=0755 node "$folder"
done
mkdir -p /var/lib/kubelet /var/log/containers
mount --bind "$KUBELET_ROOT" /var/lib/kubelet

# The kubelet sets these for the whole machine where they differ. Here it finds the values it wants, in files
# that only this node sees.
while read -r setting value; do
  mkdir -p "/run/settings/${setting%/*}"
  echo "$value" >"/run/settings/$setting"
  mount --bind "/run/settings/$setting" "/proc/sys/$setting"
done <<'SETTINGS'
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS

echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables # pods of one node reach each other's Services

touch "$NODE_FOLDER/ready-for-network"
until [[ -e $NODE_FOLDER/network-is-there ]]; do sleep 0.02; done

containerd --config "$NODE_FOLDER/containerd.toml" >>"$NODE_LOGS/$NODE_NAME-containerd.log" 2>&1 &
containerd_pid=$!
"$KUBE_PROXY" --config "$NODE_FOLDER/kube-proxy.json" >>"$NODE_LOGS/$NODE_NAME-kube-proxy.log" 2>&1 &

until ctr --address "$NODE_FOLDER/containerd.sock" version >/dev/null 2>&1; do
  kill -0 "$containerd_pid" # stop waiting when it has ended
  sleep 0.05
done

# containerd answers before it has looked through the containers it knows, and a kubelet that comes in between
# ends: it is started again then, and only then.
run_kubelet() {
  local log="$NODE_LOGS/$NODE_NAME-kubelet.log"
  until "$KUBELET" \
    --config "$NODE_FOLDER/kubelet.json" \
    --kubeconfig "$NODE_FOLDER/kubelet.kubeconfig" \
    --hostname-override "$NODE_NAME" \
    --node-ip "$NODE_ADDRESS" \
    >>"$log" 2>&1; do
    tail -n 3 "$log" | grep -q "server is not initialized yet" || return 1
    sleep 0.1
  done
}
run_kubelet &

ended=0
wait -n -p pid || ended=$?
echo "process $pid of $NODE_NAME ended with $ended: the node ends too" >&2
exit 1
