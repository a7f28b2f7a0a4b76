// The least that a webhook in Go can do: decode a review into maps, append a fixed container,
// answer with a fixed patch. No owners, no trial, no plan, no log, no metrics.
package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func review(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var in map[string]any
	if err := json.Unmarshal(body, &in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request := in["request"].(map[string]any)
	spec := request["object"].(map[string]any)["spec"].(map[string]any)
	sidecar := map[string]any{"name": "collector", "image": "example.org/collector:1", "args": []any{"-t", "trial"}}
	spec["containers"] = append(spec["containers"].([]any), sidecar)
	patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/containers", "value": spec["containers"]}})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	out, err := json.Marshal(map[string]any{
		"apiVersion": "admission.k8s.io/v1",
		"kind":       "AdmissionReview",
		"response": map[string]any{
			"uid": request["uid"], "allowed": true, "patchType": "JSONPatch",
			"patch": base64.StdEncoding.EncodeToString(patch),
		},
	})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(out)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("ready https=%s\n", listener.Addr())
	http.HandleFunc("/mutate-pod", review)
	panic(http.ServeTLS(listener, nil, os.Args[1], os.Args[2]))
}
