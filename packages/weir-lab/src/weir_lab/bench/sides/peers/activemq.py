"""ActiveMQ Classic over STOMP, with a non-blocking connector."""

from __future__ import annotations

from pathlib import Path

from weir_lab.bench.sides.peers.server import NotInstalled, Peer, package_version, program
from weir_lab.bench.sides.peers.stomp import Sending, Subscribing

_HOME = Path("/usr/share/activemq")
_CONFIG = """\
<beans xmlns="http://www.springframework.org/schema/beans"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:schemaLocation="http://www.springframework.org/schema/beans
 http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
 http://activemq.apache.org/schema/core
 http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="localhost"
 dataDirectory="{folder}/data">
 <destinationPolicy><policyMap><policyEntries>
  <policyEntry queue=">" producerFlowControl="true" memoryLimit="256mb"/>
 </policyEntries></policyMap></destinationPolicy>
 <persistenceAdapter><kahaDB directory="{folder}/data/kahadb"{store}/></persistenceAdapter>
 <systemUsage><systemUsage>
  <memoryUsage><memoryUsage limit="1 gb"/></memoryUsage>
  <storeUsage><storeUsage limit="30 gb"/></storeUsage>
  <tempUsage><tempUsage limit="5 gb"/></tempUsage>
 </systemUsage></systemUsage>
 <transportConnectors>
  <transportConnector name="stomp"
   uri="stomp+nio://127.0.0.1:{port}?maximumConnections=20000&amp;backlog=4096"/>
 </transportConnectors>
</broker></beans>
"""
_LOGGING = """\
rootLogger.level=WARN
appender.c.type=Console
appender.c.name=C
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %p %c %m%n
rootLogger.appenderRef.c.ref=C
"""


class ActiveMq(Peer):
    """`nio`: KahaDB syncs its journal before each receipt, which is its default."""

    name = "activemq"
    variants = ("nio",)
    synced = True
    #: Attributes of its store that are not left as they are, as XML.
    store = ""

    @property
    def settings(self) -> str:
        """Tell how it is set."""
        return "STOMP over stomp+nio, persistent, receipt after KahaDB's journal sync (always)"

    def version(self) -> str:
        """Return its version."""
        return package_version("activemq").partition("+")[0]

    def command(self, folder: Path) -> list[str]:
        """Write its configuration, and return how to start it."""
        jar = _HOME / "bin" / "activemq.jar"
        if not jar.exists():
            raise NotInstalled("activemq is not installed here: run scripts/install-peers")
        for name in ("conf", "data", "tmp"):
            (folder / name).mkdir()
        config = folder / "conf" / "activemq.xml"
        text = _CONFIG.format(folder=folder, port=self.port, store=self.store)
        config.write_text(text, encoding="utf-8")
        (folder / "conf" / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
        return [
            program("java"),
            *("-Xms1G", "-Xmx3G", "-Xss256k"),
            f"-Dactivemq.home={_HOME}",
            f"-Dactivemq.base={folder}",
            f"-Dactivemq.conf={folder}/conf",
            f"-Dactivemq.data={folder}/data",
            f"-Djava.io.tmpdir={folder}/tmp",
            f"-Dactivemq.classpath={folder}/conf",
            *("-jar", str(jar), "start", f"xbean:file:{config}"),
        ]

    def prepare(self, topic: str) -> None:
        """Do nothing: a queue is made by its first use."""

    def publishing(self, topic: str, size: int) -> Sending:
        """Return a producer's side."""
        return Sending(topic, size)

    def consuming(self, topic: str, size: int) -> Subscribing:
        """Return the consumer's side."""
        return Subscribing(topic, size)

    def working(self, topic: str, size: int, number: int, grant: int) -> Subscribing:
        """Return a worker's side."""
        return Subscribing(topic, size, grant)
