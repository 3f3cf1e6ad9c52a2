"""Text of any encoding is decoded."""

import pytest

from modeling_condenser.collection import conversion
from modeling_condenser.collection.conversion import decode_file, read_any_rows

GERMAN = "Grüße aus Köln, “größer” – 5 €"
STATED = "<meta charset={}><p>{}"


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("a.txt", "L'élève a été reçu à l'école.\nFin.", "cp1252"),
        ("a.txt", "企鹅生活在南极。它们吃磷虾。", "gb18030"),
        ("a.txt", "Sixteen bits, ½.", "utf-16"),
        ("a.txt", "über", "utf-8-sig"),
        ("a.html", STATED.format("iso-8859-1", GERMAN), "cp1252"),  # as in browsers
        ("a.html", STATED.format("'latin1'", GERMAN), "utf-8"),  # which it does not state
        ("a.html", STATED.format("iso-2022-jp", "日本語"), "iso-2022-jp"),
        ("a.html", STATED.format("x-sjis", "日本語"), "cp932"),
        ("a.html", STATED.format('"big5"', "中文"), "big5"),
        ("a.html", STATED.format("x-mac-roman", GERMAN), "mac-roman"),
        ("a.html", STATED.format("no-such-name", GERMAN), "cp1252"),
        ("a.html", STATED.format("x-user-defined", GERMAN), "cp1252"),
        ("a.html", STATED.format("unicode", "even"), "ascii"),
    ],
)
def test_text_of_any_encoding_is_decoded(name, text, encoding, tmp_path):
    (tmp_path / name).write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert decode_file(tmp_path / name)[0] == text


def test_a_stated_encoding_is_kept_in_spite_of_a_bad_byte(tmp_path):
    page = STATED.format("euc-kr", "똠방각하" * 99)
    (tmp_path / "a.html").write_bytes(page.encode("cp949") + b"\xff")
    assert decode_file(tmp_path / "a.html") == (f"{page}\ufffd", "cp949")
    (tmp_path / "a.csv").write_bytes(b"text\n" + "Książka\n".encode("cp1250") * 99 + b"\x81\n")
    texts = [row["text"] for row in read_any_rows(tmp_path / "a.csv", "cp1250")]
    assert texts == ["Książka"] * 99 + ["\ufffd"]
    (tmp_path / "b.csv").write_bytes(b"text\n" + "Straße\n".encode() * 999 + b"Caf\xe9\n")
    texts = [row["text"] for row in read_any_rows(tmp_path / "b.csv")]
    assert texts == ["Straße"] * 999 + ["Caf\ufffd"]
    # But not if many bytes are bad.
    (tmp_path / "a.html").write_bytes(page.encode("utf-16"))
    assert decode_file(tmp_path / "a.html")[0] == page


@pytest.mark.parametrize("declaration", ["", '<meta charset="utf-8">'])
@pytest.mark.parametrize("encoding", [None, "utf-8", "utf8"])
def test_utf_8_is_kept_in_spite_of_a_bad_byte(declaration, encoding, tmp_path):
    text = f"{declaration} Die Größe der Äpfel – \ufffd ist für Käufer wichtig."
    file = tmp_path / "a.html"
    file.write_bytes(text.encode().replace("\ufffd".encode(), b"\xe9"))
    assert decode_file(file, encoding)[0] == text
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # a byte order mark
    assert decode_file(file, encoding)[0] == text
    for other, words in (
        ("cp1252", "Une crème pour moi, s'il vous plaît, et pour lui aussi."),
        ("cp1251", "Привет, как дела? Сегодня хорошая погода."),
        ("cp932", "日本の首都は東京です。"),
    ):
        file.write_bytes(words.encode(other))  # is no bad UTF-8
        assert decode_file(file)[0] == words


def test_western_text_with_few_signs_is_not_taken_for_east_asian_or_cyrillic(tmp_path):
    for text in (
        "Keep the vaccine below 20°C. " * 9,
        "The café is open from 9 to 18 every day.",
        "Boil at 100°C, then cool to 20°C; see section 5 of the manual. " * 3,
    ):
        (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
        assert decode_file(tmp_path / "a.txt") == (text, "cp1252")
    english = "The instructions are inside the box, together with all of the cables. " * 8
    for text, encoding in (
        ("日本の首都は東京です。人口は約千四百万人です。", "cp932"),
        (f"{english}安装说明书在这里。", "gb18030"),
        (f"{english}사용 설명서", "euc_kr"),
        ("question,file\nis it 20°C,a.md\n" + "where is it,b.md\n" * 9, "utf_16_le"),
    ):
        (tmp_path / "a.txt").write_bytes(text.encode(encoding))
        assert decode_file(tmp_path / "a.txt")[0] == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1250"])
def test_tables_of_any_encoding_are_read_and_utf_8_in_parts(encoding, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_BYTES_A_READ", 1)
    if encoding.startswith("utf-8"):  # is not read as a whole
        monkeypatch.setattr(conversion, "decode_file", lambda *_: 1 / 0)
    (tmp_path / "a.csv").write_text("text\nKsiążka\n", encoding)
    (tmp_path / "a.jsonl").write_text('{"text": "Książka"}\n', encoding)
    for file in tmp_path.iterdir():
        assert list(read_any_rows(file, "cp1250")) == [{"text": "Książka"}]
