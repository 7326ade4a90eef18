#!/bin/bash
# Makes /dev/dax0.0 of the CXL memory device through sysfs, as `cxl create-region` does.
for module in cxl_port cxl_mem cxl_pmem dax_cxl device_dax; do modprobe $module; done
cd /sys/bus/cxl/devices || exit 1
size=0x20000000
for decoder in decoder[1-9]*.0; do [ -e "$decoder/dpa_size" ] && break; done
read -r region < decoder0.0/create_ram_region
echo "$region" > decoder0.0/create_ram_region
echo 256 > "$region/interleave_granularity"
echo 1 > "$region/interleave_ways"
echo $size > "$region/size"
echo ram > "$decoder/mode"
echo $size > "$decoder/dpa_size"
echo "$decoder" > "$region/target0"
echo 1 > "$region/commit"
echo "$region" > /sys/bus/cxl/drivers/cxl_region/bind
sleep 1
device=$(ls /sys/bus/dax/devices | head -1)
daxctl reconfigure-device -m devdax "$device" || {
  echo "$device" > /sys/bus/dax/drivers/device_dax/new_id
  echo "$device" > /sys/bus/dax/drivers/device_dax/bind
}
ls /dev/dax*
