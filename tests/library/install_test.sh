#!/usr/bin/env bash
# Installs a build into a folder of its own, moves it, and builds the examples against it as a user would, with CMake and
# with pkg-config, shared and static: install_test.sh BUILD SOURCE PACKAGE
set -euo pipefail
build=$1 source=$2 package=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/first" >"$folder/log"
mv "$folder/first" "$folder/prefix" # nothing in it may know where it was
prefix=$folder/prefix
libraries=$(dirname "$(find "$prefix" -name libmoeflux.so)")

run() { # PROGRAM
  "$1" "$package" 2>>"$folder/log" | grep -q 'Once upon a time, a girl' || { echo "$1 failed"; cat "$folder/log"; exit 1; }
}

echo 'with find_package'
cmake -S "$source/examples" -B "$folder/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$folder/log"
cmake --build "$folder/cmake" >>"$folder/log" || { cat "$folder/log"; exit 1; }
run "$folder/cmake/example_generate"

echo 'with find_package, static'
mkdir "$folder/static"
cat >"$folder/static/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(static_example LANGUAGES C CXX)
find_package(moeflux 0.1 REQUIRED COMPONENTS static)
add_executable(generate $source/examples/generate.c)
target_link_libraries(generate PRIVATE moeflux::static)
END
cmake -S "$folder/static" -B "$folder/static/build" -DCMAKE_PREFIX_PATH="$prefix" >"$folder/log"
cmake --build "$folder/static/build" >>"$folder/log" || { cat "$folder/log"; exit 1; }
run "$folder/static/build/generate"

export PKG_CONFIG_PATH=$libraries/pkgconfig
echo "with pkg-config, version $(pkg-config --modversion moeflux)"
cc -std=c11 "$source/examples/generate.c" $(pkg-config --cflags --libs moeflux) -Wl,-rpath,"$libraries" -o "$folder/generate"
run "$folder/generate"
echo 'with pkg-config, static'
cc -std=c11 "$source/examples/generate.c" $(pkg-config --cflags moeflux) -L"$libraries" -Wl,-Bstatic -lmoeflux -Wl,-Bdynamic \
  $(pkg-config --static --libs-only-l moeflux | sed 's/-lmoeflux//') -pthread -o "$folder/generate_static"
run "$folder/generate_static"

echo 'the shared library shows the C functions of the header, and nothing else'
nm -D --defined-only "$libraries/libmoeflux.so" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort >"$folder/shown"
grep -oE '^MOEFLUX_API [^;(]*\(' "$prefix/include/moeflux/moeflux.h" | grep -oE 'moeflux_[a-z_]+\($' | tr -d '(' | sort >"$folder/declared"
diff "$folder/declared" "$folder/shown"
[ -s "$folder/declared" ]
