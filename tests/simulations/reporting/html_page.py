"""Reads the pages that reports are."""

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Keeps the text, attributes and identifiers of a page, and checks that its elements nest."""

    def __init__(self, source):
        super().__init__()
        self.open, self.attributes, self.tags, self.text = [], [], [], ""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data.replace("\N{NO-BREAK SPACE}", " ")
