"""Reads the model card of an exported folder as the Hugging Face Hub and a Markdown renderer do.

    python3 card.py FOLDER         prints {"data": front matter, "text": Markdown, "html": rendered Markdown}
"""

import json
import sys

from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

card = ModelCard.load(sys.argv[1] + "/README.md")
html = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(card.text)
print(json.dumps({"data": card.data.to_dict(), "text": card.text, "html": html}))
