#!/usr/bin/env bash
# Compiles every proof, compares the axioms of the headline theorems with axioms.txt, and builds the verified checker, all in the folder
# given, which is made.  It takes coq (8.16), libcoq-coquelicot, libcoq-flocq, libzarith-ocaml-dev and ocaml-findlib.
set -euo pipefail
into="${1:?the folder to build in}"
mkdir -p "$into"
cp -R "$(dirname "$0")"/. "$into"
cd "$into"
find . -name '*.v' ! -name Headlines.v | sort | xargs coq_makefile -f _CoqProject -o Makefile
make --silent -j"$(nproc)"
coqc -R . Attention -w -ambiguous-paths Headlines.v >assumptions.txt
grep -oE '^[A-Za-z_.0-9]+( :|$)' assumptions.txt | sed 's/ :$//' | LC_ALL=C sort -u >axioms_used.txt
LC_ALL=C sort -u axioms.txt | diff - axioms_used.txt
if grep -rnE '^ *(Admitted|Axiom|Parameter|Conjecture)\b|\badmit\b' --include='*.v' .; then
    echo "something is admitted" >&2
    exit 1
fi
ocamlfind ocamlopt -package zarith -linkpkg verified.mli verified.ml verified/checker.ml -o checker 2>/dev/null
echo "$(grep -c '^Print Assumptions' Headlines.v) headline theorems rest on Coq's axioms of the real numbers alone; the checker is $into/checker"
