#!/usr/bin/env bash
# Who may include whom. Sources name internal headers by their path under src/ ("os/socket.h"), or
# by the bare name within one folder.
#
#   base      the C library alone
#   os        base
#   world     base, os
#   trace     base, os
#   gpu       base, os
#   a backend base, os, world, gpu, trace; never another backend, never api
#   registry  the above, and every backend
#   api       everything; of the backends the registry alone
#   cli       spark_comm.h alone
#   examples  the public headers alone
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The layer of a path under src/. Each backend is a layer of its own: a folder, or a file.
layer_of() {
    case $1 in
    backends/registry.*) echo registry ;;
    backends/*/*) echo "backend:$(cut -d/ -f2 <<<"$1")" ;;
    backends/*) echo "backend:$(basename "${1%.*}")" ;;
    */*) echo "${1%%/*}" ;;
    *) echo "?" ;;
    esac
}

# may LAYER INCLUDED: is it allowed?
may() {
    [ "$1" != "$2" ] || return 0
    case $1 in
    base) return 1 ;;
    os) [[ $2 == base ]] ;;
    world | trace | gpu) [[ $2 == base || $2 == os ]] ;;
    backend:*) [[ $2 =~ ^(base|os|world|gpu|trace)$ ]] ;;
    registry) [[ $2 =~ ^(base|os|world|gpu|trace|backend:.*)$ ]] ;;
    api) [[ $2 =~ ^(base|os|world|gpu|trace|registry)$ ]] ;;
    *) return 1 ;;
    esac
}

# What is not the C library: who may include it, if anyone.
foreign_allowed() {
    case $2 in
    sodium.h | sodium/*) [[ $1 == world ]] ;;
    jansson.h) [[ $1 == cli ]] ;;
    spark_comm_backend.h) [[ $1 != cli ]] ;;
    cuda*.h | nv*.h | nccl*.h | mpi.h) [[ $1 == kernels ]] ;;
    *) return 0 ;;
    esac
}

includes_of() { grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "$1" || true; }

check_file() {
    local path=$1 under=$2 layer=$3 line name included
    while IFS= read -r line; do
        [ -n "$line" ] || continue
        name=$(sed -E 's/.*include[[:space:]]*["<]([^">]*)[">].*/\1/' <<<"$line")
        if [[ $line =~ include[[:space:]]*\< ]]; then
            foreign_allowed "$layer" "$name" ||
                complain "$under:${line%%:*}: $layer must not include <$name>"
            continue
        fi
        case $name in
        spark_comm.h) continue ;;
        spark_comm_backend.h)
            [ "$layer" != cli ] || complain "$under:${line%%:*}: the program uses spark_comm.h alone"
            continue
            ;;
        *..*) complain "$under:${line%%:*}: \"$name\": name it by its path under src/"; continue ;;
        esac
        if [ -e "$(dirname "$path")/$name" ]; then
            included=$name
            [[ $under != src/* ]] || included=$(dirname "${under#src/}")/$name
        elif [[ $under == src/* && -e $source_dir/src/$name ]]; then
            included=$name
        else
            complain "$under:${line%%:*}: \"$name\" is no header that $layer may include"
            continue
        fi
        if [[ $under == src/* ]] && ! may "$layer" "$(layer_of "$included")"; then
            complain "$under:${line%%:*}: $layer must not include $included"
        fi
    done < <(includes_of "$path")
}

while IFS= read -r path; do
    under=${path#"$source_dir"/}
    case $under in
    src/gpu/kernels/*.cu | src/gpu/kernels/*.cuh) layer=kernels ;;
    src/*) layer=$(layer_of "${under#src/}") ;;
    cli/*) layer=cli ;;
    *) layer=examples ;;
    esac
    if [ "$layer" = "?" ]; then
        complain "$under: every source belongs into a folder of src/"
        continue
    fi
    [ "$layer" = kernels ] || check_file "$path" "$under" "$layer"
done < <(cd "$source_dir" && find "$source_dir/src" "$source_dir/cli" "$source_dir/examples" \
    \( -name '*.c' -o -name '*.h' \) 2>/dev/null | sort)

# The public headers include the C library's freestanding ones, and each other.
for path in "$source_dir"/include/*.h; do
    while IFS= read -r line; do
        [[ $line =~ [\<\"](stdbool\.h|stddef\.h|stdint\.h|spark_comm\.h)[\>\"] ]] ||
            complain "include/$(basename "$path"):$line: a public header must not include that"
    done < <(includes_of "$path")
done

finish check_layers
