{{/* A health check: farrowd answers on loopback only. bash needs no other program. */}}
{{- define "farrow.probe" -}}
exec:
  command:
    - /bin/bash
    - -c
    - |-
      exec 3<>/dev/tcp/127.0.0.1/{{ int64 .port }} && printf 'GET {{ .path }} HTTP/1.0\r\n\r\n' >&3 &&
      read -r answer <&3 && [[ $answer == *' 200 '* ]]
timeoutSeconds: 5
{{- end }}

{{/* The memory that the kernel counts for a node. */}}
{{- define "farrow.memory" -}}
{{ add (int64 .Values.memoryMiB) (int64 .Values.daemonMiB) }}Mi
{{- end }}
