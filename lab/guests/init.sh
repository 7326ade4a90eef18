#!/bin/bash
# Process 1 of a guest: mounts, one network link, and then the commands that the host leaves in a
# folder that it shares by 9p. Guests have no systemd.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
for at in /dev/shm /tmp /run; do mount -t tmpfs -o mode=1777 tmpfs $at; done
for word in $(cat /proc/cmdline); do
  case $word in guest.*=*) name=${word%%=*}; export "GUEST_${name#guest.}=${word#*=}" ;; esac
done
hostname "host$GUEST_number"
own=10.77.0.$((GUEST_number + 1))
printf '127.0.0.1 localhost\n10.77.0.1 host0\n10.77.0.2 host1\n%s same\n' "$own" > /etc/hosts
ip link set lo up
modprobe virtio_net
sleep 0.1
link=$(ls /sys/class/net | grep -v lo | head -1)
ip addr add "$own/24" dev "$link"
ip link set "$link" up
modprobe 9pnet_virtio
modprobe 9p
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,access=any host /host
for module in ${GUEST_modules//,/ }; do modprobe "${module}" || echo "no $module"; done
mkdir -p /opt/project
cp -a /host/project/. /opt/project/
folder=/host/$GUEST_number
cut -d' ' -f1 /proc/uptime > "$folder/up"
next=0
while [ ! -e "$folder/off" ]; do
  if [ -e "$folder/$next.go" ]; then
    (
      bash "$folder/$next.sh" > "$folder/$next.out" 2>&1 < /dev/null
      echo $? > "$folder/$next.status.new"
      mv "$folder/$next.status.new" "$folder/$next.status"
    ) &
    next=$((next + 1))
  else
    sleep 0.2
  fi
done
sync
echo o > /proc/sysrq-trigger
sleep 5
