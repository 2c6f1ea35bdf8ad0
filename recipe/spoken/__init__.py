"""The spoken corpus: chats of customers with a lunch-box shop, from lines that people can read under `text/`."""
