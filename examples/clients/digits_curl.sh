#!/bin/sh
# Recognise one handwritten digit with curl: sh examples/clients/digits_curl.sh [host:port]
set -eu
here=$(dirname "$0")
url=http://${1:-127.0.0.1:8000}

echo "digits_onnx, a JSON request; the answer is the three likeliest as score:index:label"
curl --fail-with-body --silent --show-error -H 'Content-Type: application/json' \
  --data-binary @"$here/digit.json" "$url/v2/models/digits_onnx/infer"
echo

for file in digit.pgm digit.png; do
  echo "digits_pipeline, the bytes of $file"
  bytes=$(od -An -v -tu1 "$here/$file" | tr -s ' \n' ',' | sed 's/^,//; s/,$//')
  count=$(($(wc -c < "$here/$file")))
  curl --fail-with-body --silent --show-error -H 'Content-Type: application/json' --data-binary \
    "{\"inputs\":[{\"name\":\"IMAGE\",\"datatype\":\"UINT8\",\"shape\":[$count],\"data\":[$bytes]}]}" \
    "$url/v2/models/digits_pipeline/infer"
  echo
done
