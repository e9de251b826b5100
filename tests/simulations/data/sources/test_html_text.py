import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlm.simulations.data.sources.stackexchange.html_text import (
    comment_paragraphs,
    html_paragraphs,
)


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>One <em>and</em>\n two.</p>\n\n<p>Three.</p>", ["One and two.", "Three."]),
        ("no element &amp; no &lt;tag&gt;", ["no element & no <tag>"]),
        ("a<br>b<br/>c", ["a", "b", "c"]),
        ("<ul><li>a</li><li>b<ol><li>c</li></ol>d</li></ul>", ["a", "b", "c", "d"]),
        ("<h2>Title</h2>text<hr>more", ["Title", "text", "more"]),
        ("<blockquote><p>quoted</p></blockquote>said", ["quoted", "said"]),
        ("<table><tr><td>a</td><td>b</td></tr></table>", ["a", "b"]),
        ("<p>before</p><pre><code>int x;\n</code></pre><p>after</p>", ["before", "after"]),
        ("before<pre>code <b>bold</b></pre>after", ["before", "after"]),
        ("Call <code>print()</code> here.", ["Call print() here."]),
        ("<!-- language: lang-py --><p>a<!-- no --> b</p><script>x()</script>", ["a b"]),
        ('<p><a href="http://x.org" title="t">words</a> <img src="i.png" alt="no"></p>', ["words"]),
        ("See https://x.org/a_(b)?c=d#e. Or (www.y.org/z), ftp://f.", ["See <URL>. Or (<URL>), <URL>."]),
        ("<p>We have $$x = \\frac{1}{2}$$ for $n &lt; 3$.</p>", ["We have for $n < 3$."]),
        ("So \\begin{align}a &amp;= b\\\\[2pt] c\\end{align} holds.", ["So holds."]),
        ("a $$b$$ c $$d$$ e $$f", ["a c e $$f"]),
        ("a \\[b \\begin{x} c\\] d \\end{b} \\] e", ["a d \\end{b} \\] e"]),
        ("\\begin{a}\\begin{a}x\\end{a}\\end{a}y \\begin{a}y", ["y \\begin{a}y"]),
        ("In <code>$$</code> or <code>\\[a\\]</code> and <code>$$</code>.", ["In $$ or \\[a\\] and $$."]),
        ("a&nbsp;b&#8217;s &bogus; \u2028c", ["a b\u2019s &bogus; c"]),
        ("<p>open <b>never closed<p>next</i></p></div>", ["open never closed", "next"]),
        ("", []),
        ("<p> </p><br>\n<!-- only -->", []),
        ("<pre>only code</pre>", []),
    ],
)
def test_html_becomes_paragraphs(html, expected):
    assert html_paragraphs(html) == expected


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("Use `print()` or ``a`b``.", ["Use print() or ab."]),
        ('See [this page](https://x.org/a_(b)) and [that](http://y.org "title").', ["See this page and that."]),
        ("At http://x.org/a, 5 &lt; 6 &amp;\n 25&deg;", ["At <URL>, 5 < 6 & 25\u00b0"]),
        ("First.\n\nSecond.", ["First.", "Second."]),
        ("It is $$e^x$$, or $e$, or `$$`, or `$$`.", ["It is , or $e$, or $$, or $$."]),
        ("array[0](x) and [a] (b)", ["array0 and [a] (b)"]),
        (" \n", []),
    ],
)
def test_comments_become_paragraphs(comment, expected):
    assert comment_paragraphs(comment) == expected


PIECES = st.sampled_from(
    "<p> </p> <pre> </pre> <code> </code> < > & &# &#x0; &#x110000; <!-- --> <![CDATA[ <body> </html> <svg> "
    "<table> <td> <textarea> <plaintext> <script> <meta/charset=utf-16> <?xml\tversion='1.0'\tencoding='latin-1'?> "
    "\0 \n $$ \\[ \\begin{x} ` ]( http://".split(" ")
)


@pytest.mark.long
@given(st.lists(PIECES | st.text(max_size=5) | st.sampled_from(string.punctuation), max_size=40).map("".join))
def test_no_text_is_too_broken(text):
    for paragraph in html_paragraphs(text) + comment_paragraphs(text):
        assert paragraph
        assert paragraph == " ".join(paragraph.split())
        assert "\0" not in paragraph


def test_deep_and_long_html_is_read():
    assert html_paragraphs("<div>" * 3000 + "deep") in (["deep"], [])  # libxml2 may cut off what is too deep
    long = "word " * 2_100_000  # more than libxml2's usual limit for one text
    assert len(html_paragraphs(f"<p>{long}</p>")[0]) == len(long) - 1
    assert len(html_paragraphs("<code>\\[" * 5000 + "$$" * 20_001)) <= 1
