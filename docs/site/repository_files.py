"""Pages for both packages, and for other files and folders of the repository to which documents link."""

from base64 import b64encode
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

LANGUAGES = {".py": "python", ".v": "coq", ".ml": "ocaml", ".yml": "yaml", ".txt": "none", ".json": "none"}
SHOWN = {".svg", *LANGUAGES}


def page_of(path, env):
    """The page that shows a file or folder, without its ending .html: a document, or one under files/."""
    document = env.path2doc(path / "README.md" if path.is_dir() else path)
    if document in env.found_docs:
        return document
    if path.suffix == ".html":  # copied as it is
        return path.stem
    return f"files/{path.relative_to(env.srcdir).as_posix()}"


class RepositoryLinks(SphinxTransform):
    """Lead links to what is no document to the pages that show it."""

    default_priority = 500

    def apply(self):
        """Replace the links, and note what needs a page."""
        here = self.env.doc2path(self.env.docname).parent
        for link in [
            *self.document.findall(addnodes.pending_xref),
            *self.document.findall(addnodes.download_reference),
        ]:
            target = link["reftarget"]
            if link["reftype"] != "myst" or target in self.env.found_docs:
                continue
            path = (here / target).resolve()
            if link["refdomain"] == "doc":  # a module: Sphinx took it for a lesson, and its ending away
                path = Path(self.env.srcdir, f"{target}.py")
            if path.is_dir() or (path.exists() and path.suffix in {".html", *SHOWN}):
                page = page_of(path, self.env)
                uri = self.app.builder.get_relative_uri(self.env.docname, page)
                link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=uri))
                if page.startswith("files/"):
                    self.env.metadata[self.env.docname].setdefault("files", set()).add(path)


def pages(app):
    """The pages of both packages, of what was noted, and of all in these folders."""
    packages = [Path(app.srcdir, name) for name in ("construct", "verify")]
    waiting = list({*packages}.union(*(about.get("files", ()) for about in app.env.metadata.values())))
    for path in waiting:
        name = path.relative_to(app.srcdir).as_posix()
        page = page_of(path, app.env)
        if path.is_dir():
            links = []
            for entry in sorted(path.iterdir()):
                if entry.suffix in SHOWN or (entry.is_dir() and entry.name[0] not in "._"):
                    other = page_of(entry, app.env)
                    links.append(
                        f'<li><a href="{app.builder.get_relative_uri(page, other)}">{escape(entry.name)}</a></li>'
                    )
                    if other.startswith("files/") and entry not in waiting:
                        waiting.append(entry)
            body = f"<ul>{''.join(links)}</ul>"
        elif path.suffix == ".svg":
            body = f'<img alt="" src="data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}">'
        else:
            text = path.read_text(encoding="utf-8")
            body = app.builder.highlighter.highlight_block(
                text, LANGUAGES[path.suffix], force=True, linenos="inline", lineanchors="L"
            )
        yield page, {"title": name, "body": f"<h1>{escape(name)}</h1>{body}"}, "page.html"


def setup(app):
    """Called by Sphinx."""
    app.add_transform(RepositoryLinks)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}
