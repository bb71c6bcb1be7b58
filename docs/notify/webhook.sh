#!/bin/sh
# Posts the event on standard input to the webhook $WEBHOOK_URL. Other users can read the arguments of a program, so curl
# reads the URL from descriptor 3.
exec curl --silent --show-error --fail --max-time 20 --output /dev/null \
    --header "Content-Type: application/json" --data-binary @- --config /dev/fd/3 3<<END
url = "$WEBHOOK_URL"
END
